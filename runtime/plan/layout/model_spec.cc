#include "runtime/plan/layout/model_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "kernels/ops/step_ops.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

std::string_view KindText(ParamKind kind) {
  switch (kind) {
    case ParamKind::kMatrix:
      return "matrix";
    case ParamKind::kNorm:
      return "norm";
    case ParamKind::kF32:
      return "f32";
  }
  return "?";
}

std::string InitText(const ParamSpec& param) {
  switch (param.init) {
    case InitKind::kNormal:
      return fmt::format("normal({:.6g})", param.init_std);
    case InitKind::kOnes:
      return "ones";
    case InitKind::kZeros:
      return "zeros";
    case InitKind::kLogIndex:
      return "log_index";
    case InitKind::kStepBias:
      return "step_bias";
  }
  return "?";
}

std::string RuleText(const ParamSpec& param) {
  if (param.update == UpdateRule::kAdamW) return "";
  std::string text = fmt::format(" by {}", Name(param.update));
  if (param.update == UpdateRule::kBalance) text += fmt::format(" {}", param.balance.rate);
  if (param.update == UpdateRule::kMuon && !param.fused.empty())
    text += fmt::format(" of [{}] rows", fmt::join(param.fused, ", "));
  return text;
}

void ValidateHidden(const ParamSpec& param) {
  MR_CHECK(param.update != UpdateRule::kMuon || param.hidden,
           "parameter {}: by muon, but it is no matrix between hidden states", param.name);
  if (!param.hidden) return;
  const size_t rank = param.dims.size();
  MR_CHECK(rank >= 2 && param.decay && param.padded_rows == param.dims[0],
           "parameter {}: a matrix between hidden states has 2 or 3 dims, decays and has no padded "
           "rows",
           param.name);
  int64_t together = 0;
  for (const int64_t rows : param.fused) together += rows;
  MR_CHECK(param.fused.empty() || together == param.dims[rank - 2],
           "parameter {}: its fused matrices have {} rows together, not {}", param.name, together,
           param.dims[rank - 2]);
}

void ValidateSplits(const ParamSpec& param) {
  AxisSet axes;
  std::set<int> dims;
  for (const Split& split : param.splits) {
    constexpr AxisSet kSplitting = {Axis::kContext, Axis::kExpert, Axis::kTensor};
    MR_CHECK((split.axes - kSplitting).empty() && (split.axes & axes).empty(),
             "parameter {}: a split over {}; context, expert and tensor split, each once",
             param.name, ToString(split.axes));
    axes = axes | split.axes;
    MR_CHECK(split.dim >= 0 && static_cast<size_t>(split.dim) < param.dims.size() &&
                 dims.insert(split.dim).second,
             "parameter {}: split on dim {} of {}, or twice on it", param.name, split.dim,
             param.dims.size());
    int64_t together = 0;
    for (const int64_t part : split.parts) {
      MR_CHECK(part > 0, "parameter {}: a part of {}", param.name, part);
      together += part;
    }
    MR_CHECK(split.parts.empty() || together == param.dims[static_cast<size_t>(split.dim)],
             "parameter {}: the parts of dim {} are {} together, not {}", param.name, split.dim,
             together, param.dims[static_cast<size_t>(split.dim)]);
    MR_CHECK(split.dim != 0 || param.padded_rows == param.dims[0],
             "parameter {}: rows are both split and padded", param.name);
  }
}

void ValidateInputs(const ModelSpec& spec) {
  std::set<std::string> names;
  for (const InputSpec& input : spec.inputs) {
    MR_CHECK(!input.name.empty() && names.insert(input.name).second,
             "input name '{}' is empty or given twice", input.name);
    MR_CHECK(!input.source.empty() && input.shift >= 0, "input {}: source '{}', shift {}",
             input.name, input.source, input.shift);
    MR_CHECK(input.filled >= 0 && input.filled <= input.shift &&
                 (input.filled == 0 || Bytes(input.dtype) == 4),
             "input {}: {} columns filled of a shift of {}", input.name, input.filled, input.shift);
    for (const InputSpec& other : spec.inputs)
      MR_CHECK(other.source != input.source || other.dtype == input.dtype,
               "inputs {} and {} of source {} are {} and {}", input.name, other.name, input.source,
               Name(input.dtype), Name(other.dtype));
  }
}

void ValidateLosses(const ModelSpec& spec) {
  MR_CHECK(!spec.losses.empty() && spec.losses.size() <= kMaxLosses,
           "model {} has {} losses; 1 to {} are possible", spec.family, spec.losses.size(),
           kMaxLosses);
  std::set<std::string> names;
  for (const LossSpec& loss : spec.losses) {
    MR_CHECK(!loss.name.empty() && names.insert(loss.name).second,
             "loss name '{}' is empty or given twice", loss.name);
    const auto require = [&](const std::string& name, DType dtype) {
      const auto input = std::find_if(spec.inputs.begin(), spec.inputs.end(),
                                      [&](const InputSpec& given) { return given.name == name; });
      MR_CHECK(input != spec.inputs.end() && input->dtype == dtype, "loss {}: '{}' is no {} input",
               loss.name, name, Name(dtype));
    };
    require(loss.targets, DType::kI32);
    if (!loss.weights.empty()) require(loss.weights, DType::kF32);
    if (!loss.policy) continue;
    const PolicyInputs& policy = *loss.policy;
    require(policy.old_logprobs, DType::kF32);
    require(policy.advantages, DType::kF32);
    if (!policy.reference_logprobs.empty()) require(policy.reference_logprobs, DType::kF32);
    MR_CHECK(policy.loss.kl == 0 || !policy.reference_logprobs.empty(),
             "loss {}: a divergence of weight {} from no reference", loss.name, policy.loss.kl);
  }
}

}  // namespace

void ValidateParam(const ParamSpec& param) {
  MR_CHECK(!param.dims.empty() && param.dims.size() <= 3,
           "parameter {}: {} dims; 1, 2 and 3 are possible", param.name, param.dims.size());
  for (const int64_t dim : param.dims)
    MR_CHECK(dim > 0, "parameter {}: dims [{}] are not all positive", param.name,
             fmt::join(param.dims, ", "));
  MR_CHECK_GE(param.padded_rows, param.dims[0], "parameter {}: padded_rows", param.name);
  MR_CHECK(param.update != UpdateRule::kBalance ||
               (param.dims == std::vector{param.balance.experts} && param.kind == ParamKind::kF32 &&
                param.balance.top_k >= 1),
           "parameter {}: {} experts, {} chosen; a router's bias is f32 [experts]", param.name,
           param.balance.experts, param.balance.top_k);
  MR_CHECK(param.init != InitKind::kNormal || param.init_std >= 0, "parameter {}: init_std {}",
           param.name, param.init_std);
  ValidateHidden(param);
  ValidateSplits(param);
}

std::vector<int64_t> LocalDims(const ParamSpec& param, const Mesh& mesh) {
  std::vector<int64_t> dims = param.dims;
  for (const Split& split : param.splits) {
    const auto dim = static_cast<size_t>(split.dim);
    const int ranks = mesh.Size(split.axes);
    const std::vector<int64_t> whole = {dims[dim]};
    for (const int64_t part : split.parts.empty() ? whole : split.parts)
      MR_REQUIRE(ErrorCode::kConfig, part % ranks == 0,
                 "parameter {}: {} of dim {} cannot be cut over {} ranks of {}", param.name, part,
                 split.dim, ranks, ToString(split.axes));
    dims[dim] /= ranks;
  }
  return dims;
}

std::vector<InputSpec> LanguageModelInputs() {
  return {{.name = "tokens", .source = "tokens"},
          {.name = "targets", .source = "tokens", .shift = 1}};
}

std::vector<LossSpec> LanguageModelLosses() { return {{.name = "loss"}}; }

std::vector<InputSource> SourcesOf(const std::vector<InputSpec>& inputs,
                                   const std::vector<LossSpec>& losses) {
  std::vector<InputSource> sources;
  for (const InputSpec& input : inputs) {
    auto found = std::find_if(sources.begin(), sources.end(), [&](const InputSource& source) {
      return source.name == input.source;
    });
    if (found == sources.end())
      found = sources.insert(found, {.name = input.source, .dtype = input.dtype});
    found->extra = std::max(found->extra, input.shift);
    found->filled = std::max(found->filled, input.filled);
    found->weighs |= std::any_of(losses.begin(), losses.end(),
                                 [&](const LossSpec& loss) { return loss.weights == input.name; });
  }
  return sources;
}

void ValidateModelSpec(const ModelSpec& spec) {
  ValidateInputs(spec);
  ValidateLosses(spec);
  MR_CHECK(!spec.units.empty(), "model {} has no units", spec.family);
  std::set<std::string> units, params;
  for (const UnitSpec& unit : spec.units) {
    MR_CHECK(!unit.name.empty() && units.insert(unit.name).second,
             "unit name '{}' is empty or given twice", unit.name);
    for (const ParamSpec& param : unit.params) {
      MR_CHECK(!param.name.empty() && params.insert(param.name).second,
               "unit {}: parameter name '{}' is empty or given twice", unit.name, param.name);
      ValidateParam(param);
    }
  }
}

std::string ToString(const ModelSpec& spec) {
  std::string text =
      fmt::format("model {}: layers {}, d_model {}", spec.family, spec.layers(), spec.d_model);
  const EqualBlock equal = EqualBlockOf(spec);
  if (equal)
    text += fmt::format(", heads {}, kv_heads {}, head_dim {}, ffn {}", equal.attention->heads,
                        equal.attention->kv_heads, equal.attention->head_dim, equal.mlp->width);
  text += fmt::format(", vocab {} (padded {}), seq_len {}\n", spec.vocab, spec.padded_vocab,
                      spec.seq_len);
  if (!equal)
    for (const BlockRun& run : RunsOf(spec.blocks))
      text += fmt::format("blocks {} to {}: {}\n", run.first, run.first + run.count - 1,
                          ToString(spec.blocks[static_cast<size_t>(run.first)]));
  for (const UnitSpec& unit : spec.units) {
    text += fmt::format("unit {}\n", unit.name);
    for (const ParamSpec& param : unit.params) {
      text += fmt::format("  {} [{}]", param.name, fmt::join(param.dims, ", "));
      if (param.padded_rows != param.dims[0])
        text += fmt::format(" stored rows {}", param.padded_rows);
      for (const Split& split : param.splits)
        text += fmt::format(
            " dim {} split over {}{}", split.dim, ToString(split.axes),
            split.parts.empty() ? "" : fmt::format(" in [{}]", fmt::join(split.parts, ", ")));
      text += fmt::format(" {} {}{}{}{}\n", KindText(param.kind), InitText(param),
                          param.decay ? " decay" : "", param.trainable ? "" : " frozen",
                          RuleText(param));
    }
  }
  return text;
}

}  // namespace millrace
