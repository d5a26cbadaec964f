#include "runtime/plan/nodes/router.h"

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/linear.h"

namespace millrace {
namespace {

struct RouterNodeAttrs {
  RouteAttrs route;
  DType compute = DType::kF32;  // what the products of the gradient are of
};

void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_weights = d.GradientOf(n.outputs[1]);
  if (!d_weights) return;
  const ValueId logits = n.inputs[0];
  const ValueId d_logits = d.NewGradient(logits, Attrs<RouterNodeAttrs>(n).compute);
  d.Emit(kRouterGradNode, {logits, n.outputs[0], d_weights}, {d_logits}, {}, n, ":grad");
  Contribute(d, logits, d_logits, n);
}

void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  RouteOp<View> op;
  static_cast<RouteAttrs&>(op) = Attrs<RouterNodeAttrs>(node).route;
  op.logits = l.storage().Read(node.inputs[0]);
  op.bias = l.storage().Read(node.inputs[1]);
  op.ids = l.storage().Write(node.outputs[0]);
  op.weights = l.storage().Write(node.outputs[1]);
  l.Push(op, node);
}

void LowerGrad(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  RouteGradOp<View> op;
  static_cast<RouteAttrs&>(op) = Attrs<RouterNodeAttrs>(node).route;
  op.logits = l.storage().Read(node.inputs[0]);
  op.ids = l.storage().Read(node.inputs[1]);
  op.d_weights = l.storage().Read(node.inputs[2]);
  op.d_logits = l.storage().Write(node.outputs[0]);
  l.Push(op, node);
}

void LowerSlots(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ExpertSlotsOp<View> op;
  op.ids = l.storage().Read(node.inputs[0]);
  op.offsets = l.storage().Write(node.outputs[0]);
  op.slots = l.storage().Write(node.outputs[1]);
  op.pairs = l.storage().Write(node.outputs[2]);
  l.Push(op, node);
}

}  // namespace

const NodeDef kRouterNode{.name = "router", .gradient = Gradient, .lower = Lower};
const NodeDef kRouterGradNode{.name = "router_grad", .lower = LowerGrad};
const NodeDef kSlotsNode{.name = "expert_slots", .lower = LowerSlots};

Routing Route(ForwardBuilder& b, ValueId x, const std::string& weight, const std::string& bias,
              const RouteAttrs& attrs, int64_t top_k, const std::string& label) {
  const ValueId logits = LinearF32(b, x, weight, label + ".logits");
  const int64_t rows = b.RowsOf(logits, label), experts = b.Columns(logits, label);
  const ValuePlacement placement = RowwisePlacement(b.value(logits).placement, label);
  const ValueId bias_value = b.OptionalParam(bias, label);
  b.CheckDims(bias_value, {experts}, label);
  if (bias_value)
    MR_CHECK(b.value(bias_value).dtype == DType::kF32, "node {}: bias {} is {}; f32 is needed",
             label, bias, Name(b.value(bias_value).dtype));
  const auto ints = [&](const char* name, std::vector<int64_t> dims) {
    return b.NewValue(label + name, ValueRole::kActivation, DType::kI32, std::move(dims),
                      placement);
  };
  Routing r;
  r.top_k = top_k;
  r.ids = ints(".ids", {rows, top_k});
  r.weights = b.NewStatistic(label + ".weights", {rows, top_k}, placement);
  b.Push(kRouterNode, {logits, bias_value}, {r.ids, r.weights},
         RouterNodeAttrs{attrs, b.value(x).dtype}, label);
  r.offsets = ints(".offsets", {experts + 1});
  r.slots = ints(".slots", {rows, top_k});
  r.pairs = ints(".pairs", {rows * top_k});
  b.Push(kSlotsNode, {r.ids}, {r.offsets, r.slots, r.pairs}, {}, label + ".slots");
  return r;
}

}  // namespace millrace
