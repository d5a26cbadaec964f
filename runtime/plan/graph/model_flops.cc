#include "runtime/plan/graph/model_flops.h"

#include <variant>

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
  const auto experts_of_token = [&](const BlockShape& block) {
    int64_t sum = 0;
    for (const Branch& branch : block.branches)
      if (const auto* moe = std::get_if<MoeShape>(&branch))
        sum += moe->top_k * moe->width * spec.d_model * (IsGated(moe->activation) ? 3 : 2);
    return sum;
  };
  for (const BlockShape& block : spec.blocks) n += experts_of_token(block);
  return n + spec.mtp.depth * experts_of_token(spec.mtp.block);
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
