#include "models/blocks/moe.h"

#include <tuple>
#include <variant>
#include <vector>

#include "models/transformer.h"
#include "runtime/base/error.h"
#include "runtime/plan/nodes/activation.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/moe/dispatch.h"
#include "runtime/plan/nodes/moe/expert_activation.h"
#include "runtime/plan/nodes/moe/expert_exchange.h"
#include "runtime/plan/nodes/moe/grouped_linear.h"
#include "runtime/plan/nodes/moe/router.h"

namespace millrace {
namespace {

const char* InName(const MoeShape& m) { return IsGated(m.activation) ? "gate_up" : "up"; }
int64_t InRows(const MoeShape& m, int64_t width) {
  return IsGated(m.activation) ? 2 * width : width;
}

// [E] zeros, f32: follows the loads of the experts.
ParamSpec RouterBiasParam(std::string name, const MoeShape& m) {
  ParamSpec param = ExponentParam(std::move(name), m.experts, InitKind::kZeros);
  param.update = UpdateRule::kBalance;
  param.balance = {.rate = m.bias_rate, .experts = m.experts, .top_k = m.top_k};
  return param;
}

// Rows of the matrices that lie fused ahead of the activation.
std::vector<int64_t> InParts(const MoeShape& m, int64_t width) {
  return IsGated(m.activation) ? std::vector{width, width} : std::vector<int64_t>{};
}

// Of one expert's matrix [out, in] that of all, [E, out, in]; split over the ranks that have
// experts of their own.
ParamSpec ExpertsParam(int64_t experts, ParamSpec param, const ModelOptions& o) {
  param.dims.insert(param.dims.begin(), experts);
  param.padded_rows = experts;
  if (o.expert_ranks() > 1) param.splits = {{o.expert_axes(), 0, {}}};
  return param;
}

RouteAttrs RouteOf(const MoeShape& m) {
  return {.score = m.router,
          .normalise = m.normalise,
          .scaling = m.scaling,
          .groups = m.groups,
          .top_groups = m.top_groups,
          .gate = m.gate};
}

ValueId EmitShared(ForwardBuilder& b, ValueId x, const MoeShape& m, const BranchContext& context) {
  const auto linear = [&](auto&& product, ValueId in, const std::string& name) {
    return product(b, in, context.prefix + name + ".weight", "", context.label + name);
  };
  ValueId y = linear(LinearInto, x, std::string("moe.shared.") + InName(m));
  y = Activation(b, y, m.activation, context.label + "moe.shared.act");
  return linear(LinearOut, y, "moe.shared.down");
}

}  // namespace

std::vector<ParamSpec> MoeParams(const MoeShape& m, const BranchContext& context) {
  const ModelOptions& o = context.options;
  const std::string p = context.prefix + "moe.";
  std::vector<ParamSpec> params = {
      MatrixParam(p + "router.weight", m.experts, o.d_model, o.init_std),
      ExpertsParam(m.experts,
                   HiddenParam(p + "experts." + InName(m) + ".weight", InRows(m, m.width),
                               o.d_model, o.init_std, InParts(m, m.width)),
                   o),
      ExpertsParam(m.experts,
                   HiddenParam(p + "experts.down.weight", o.d_model, m.width, ResidualStd(o)), o)};
  if (m.bias) params.push_back(RouterBiasParam(p + "router.bias", m));
  if (m.shared_width > 0) {
    const std::vector<int64_t> parts = InParts(m, m.shared_width);
    params.push_back(SplitRows(HiddenParam(p + "shared." + InName(m) + ".weight",
                                           InRows(m, m.shared_width), o.d_model, o.init_std, parts),
                               o.tensor, parts));
    params.push_back(SplitColumns(
        HiddenParam(p + "shared.down.weight", o.d_model, m.shared_width, ResidualStd(o)),
        o.tensor));
  }
  return params;
}

const MoeShape* BalancedShape(const ModelShape& shape) {
  std::vector<const MoeShape*> all;
  const auto add = [&all](const BlockShape& block) {
    for (const Branch& branch : block.branches)
      if (const auto* moe = std::get_if<MoeShape>(&branch)) all.push_back(moe);
  };
  for (const BlockShape& block : shape.blocks) add(block);
  if (shape.mtp.depth > 0) add(shape.mtp.block);
  const auto of = [](const MoeShape& m) {
    return std::tuple(m.aux_loss, m.aux_coefficient, m.experts, m.top_k);
  };
  const MoeShape* found = nullptr;
  for (const MoeShape* moe : all)
    if (moe->aux_loss != AuxLossKind::kNone) found = moe;
  for (const MoeShape* moe : all)
    MR_REQUIRE(ErrorCode::kConfig, found == nullptr || of(*moe) == of(*found),
               "one block's experts have the auxiliary loss {}, coefficient {}, {} of {} experts, "
               "another's {}, {}, {} of {}; they must agree",
               Name(found->aux_loss), found->aux_coefficient, found->top_k, found->experts,
               Name(moe->aux_loss), moe->aux_coefficient, moe->top_k, moe->experts);
  return found;
}

ValueId EmitMoe(ForwardBuilder& b, ValueId x, const MoeShape& m, const BranchContext& context,
                std::vector<ValueId>* stats) {
  const std::string p = context.prefix + "moe.", l = context.label + "moe.";
  const auto product = [&](ValueId rows, const Routing& routing, const std::string& name) {
    return GroupedLinear(b, rows, p + name + ".weight", routing, l + name);
  };
  const Routing routing =
      Route(b, x, p + "router.weight", m.bias ? p + "router.bias" : "", RouteOf(m), m.top_k,
            stats != nullptr ? m.aux_loss : AuxLossKind::kNone, l + "router");
  if (routing.stats) stats->push_back(routing.stats);
  const ExpertPlaces at = PlaceExperts(b, routing, context.options.expert_axes(),
                                       context.options.receive_capacity, l + "places");
  const Dispatched sent = SendToExperts(b, Dispatch(b, x, at.pieces, l + "dispatch"), at,
                                        l + "receive");                              // [S, C]
  ValueId y = product(sent.rows, at.received, std::string("experts.") + InName(m));  // [S, (2)F]
  y = ExpertActivation(b, y, sent.weights, at.received, m.activation, l + "experts.act");  // [S, F]
  y = product(y, at.received, "experts.down");                                             // [S, C]
  y = Combine(b, SendBack(b, y, at, l + "return"), at.pieces, l + "combine");              // [R, C]
  if (m.shared_width == 0) return y;
  return Add(b, y, EmitShared(b, x, m, context), l + "shared.add");
}

}  // namespace millrace
