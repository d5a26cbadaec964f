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

FlopsPerToken TrainFlopsPerToken(const SemanticGraph& forward) {
  FlopsPerToken sum;
  for (const Node& node : forward.forward) {
    if (node.kind->flops == nullptr) continue;
    const FlopsPerToken each = node.kind->flops(forward, node);
    sum.causal += 3 * each.causal;
    sum.full += 3 * each.full;
  }
  return sum;
}

}  // namespace millrace
