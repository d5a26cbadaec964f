#include "runtime/plan/graph/model_flops.h"

namespace millrace {

int64_t Parameters(const ModelSpec& spec) {
  int64_t n = 0;
  for (const UnitSpec& unit : spec.units)
    for (const ParamSpec& param : unit.params) n += param.numel();
  return n;
}

int64_t MatmulParameters(const ModelSpec& spec) {
  int64_t n = spec.vocab * spec.d_model;
  for (const UnitSpec& unit : spec.units) {
    if (unit.role != UnitRole::kBlock) continue;
    for (const ParamSpec& param : unit.params)
      if (param.kind == ParamKind::kMatrix && param.dims.size() == 2) n += param.numel();
  }
  return n;
}

double TrainFlopsPerToken(const ModelSpec& spec, AttentionCount attention) {
  const double per_pair = attention == AttentionCount::kCausal ? 6 : 12;
  return 6.0 * static_cast<double>(MatmulParameters(spec)) +
         per_pair * static_cast<double>(spec.layers) *
             static_cast<double>(spec.heads * spec.head_dim) * static_cast<double>(spec.seq_len);
}

}  // namespace millrace
