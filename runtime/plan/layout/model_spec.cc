#include "runtime/plan/layout/model_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "runtime/base/error.h"

namespace millrace {
namespace {

std::string InitText(const ParamSpec& param) {
  switch (param.init) {
    case InitKind::kNormal:
      return fmt::format("normal({:.6g})", param.init_std);
    case InitKind::kOnes:
      return "ones";
    case InitKind::kZeros:
      return "zeros";
  }
  return "?";
}

}  // namespace

void ValidateModelSpec(const ModelSpec& spec) {
  MR_CHECK(!spec.units.empty(), "model {} has no units", spec.family);
  std::set<std::string> units, params;
  for (const UnitSpec& unit : spec.units) {
    MR_CHECK(!unit.name.empty() && units.insert(unit.name).second,
             "unit name '{}' is empty or given twice", unit.name);
    for (const ParamSpec& param : unit.params) {
      MR_CHECK(!param.name.empty() && params.insert(param.name).second,
               "unit {}: parameter name '{}' is empty or given twice", unit.name, param.name);
      MR_CHECK(param.dims.size() == 1 || param.dims.size() == 2,
               "parameter {}: {} dims; 1 and 2 are possible", param.name, param.dims.size());
      for (const int64_t dim : param.dims)
        MR_CHECK(dim > 0, "parameter {}: dims [{}] are not all positive", param.name,
                 fmt::join(param.dims, ", "));
      MR_CHECK_GE(param.padded_rows, param.dims[0], "parameter {}: padded_rows", param.name);
      MR_CHECK(param.init != InitKind::kNormal || param.init_std >= 0, "parameter {}: init_std {}",
               param.name, param.init_std);
    }
  }
}

std::string ToString(const ModelSpec& spec) {
  std::string text = fmt::format(
      "model {}: layers {}, d_model {}, heads {}, kv_heads {}, head_dim {}, ffn {}, vocab {} "
      "(padded {}), seq_len {}\n",
      spec.family, spec.layers, spec.d_model, spec.heads, spec.kv_heads, spec.head_dim, spec.ffn,
      spec.vocab, spec.padded_vocab, spec.seq_len);
  for (const UnitSpec& unit : spec.units) {
    text += fmt::format("unit {}\n", unit.name);
    for (const ParamSpec& param : unit.params) {
      text += fmt::format("  {} [{}]", param.name, fmt::join(param.dims, ", "));
      if (param.padded_rows != param.dims[0])
        text += fmt::format(" stored rows {}", param.padded_rows);
      text += fmt::format(" {} {}{}\n", param.kind == ParamKind::kNorm ? "norm" : "matrix",
                          InitText(param), param.decay ? " decay" : "");
    }
  }
  return text;
}

}  // namespace millrace
