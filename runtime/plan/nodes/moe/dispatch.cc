#include "runtime/plan/nodes/moe/dispatch.h"

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"

namespace millrace {
namespace {

void GradientOfDispatch(Differentiator& d, const Node& n) {
  GradientOfMovedRows(d, n, kCombineNode);
}
void GradientOfCombine(Differentiator& d, const Node& n) {
  GradientOfMovedRows(d, n, kDispatchNode);
}

void LowerCombine(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  CombineOp<View> op;
  op.y = l.storage().Read(node.inputs[0]);
  op.slot_weights = l.storage().Read(node.inputs[1]);
  op.slots = l.storage().Read(node.inputs[4]);
  op.out = l.storage().Write(node.outputs[0]);
  op.weights = l.storage().Write(node.outputs[1]);
  l.Push(op, node);
}

}  // namespace

void GradientOfMovedRows(Differentiator& d, const Node& n, const NodeDef& inverse) {
  const ValueId d_rows = d.GradientOf(n.outputs[0]), d_weights = d.GradientOf(n.outputs[1]);
  if (!d_rows) return;
  const ValueId d_x = d.NewGradient(n.inputs[0]);
  const ValueId d_in_weights = d_weights ? d.NewGradient(n.inputs[1]) : ValueId{};
  d.Emit(inverse, {d_rows, d_weights, n.inputs[2], n.inputs[3], n.inputs[4]}, {d_x, d_in_weights},
         {}, n, ":grad");
  Contribute(d, n.inputs[0], d_x, n);
  if (d_in_weights) Contribute(d, n.inputs[1], d_in_weights, n);
}

void LowerDispatch(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  DispatchOp<View> op;
  static_cast<DispatchAttrs&>(op) = Attrs<DispatchAttrs>(node);
  op.x = l.storage().Read(node.inputs[0]);
  op.weights = l.storage().Read(node.inputs[1]);
  op.pairs = l.storage().Read(node.inputs[2]);
  op.offsets = l.storage().Read(node.inputs[3]);
  op.out = l.storage().Write(node.outputs[0]);
  op.slot_weights = l.storage().Write(node.outputs[1]);
  l.Push(op, node);
}

const NodeDef kDispatchNode{.name = "dispatch",
                            .recompute = RecomputeClass::kExchange,
                            .gradient = GradientOfDispatch,
                            .lower = LowerDispatch};
const NodeDef kCombineNode{.name = "combine",
                           .recompute = RecomputeClass::kNever,
                           .gradient = GradientOfCombine,
                           .lower = LowerCombine};

Dispatched Dispatch(ForwardBuilder& b, ValueId x, const Routing& routing,
                    const std::string& label) {
  const ValuePlacement placement = RowwisePlacement(b.value(x).placement, label);
  const int64_t slots = b.value(routing.pairs).dims[0];
  MR_CHECK_EQ(b.RowsOf(x, label), b.value(routing.slots).dims[0], "node {}: rows, slots", label);
  const Dispatched out{b.NewActivation(label, {slots, b.Columns(x, label)}, placement),
                       b.NewStatistic(label + ".weights", {slots}, placement)};
  b.Push(kDispatchNode, {x, routing.weights, routing.pairs, routing.offsets, routing.slots},
         {out.rows, out.weights}, DispatchAttrs{routing.top_k}, label);
  return out;
}

ValueId Combine(ForwardBuilder& b, ValueId y, const Routing& routing, const std::string& label) {
  const ValuePlacement placement = RowwisePlacement(b.value(y).placement, label);
  const std::vector<int64_t>& tokens = b.value(routing.slots).dims;  // [R,K]
  MR_CHECK_EQ(b.RowsOf(y, label), b.value(routing.pairs).dims[0], "node {}: slots", label);
  const ValueId out = b.NewActivation(label, {tokens[0], b.Columns(y, label)}, placement);
  b.Push(kCombineNode, {y, {}, routing.pairs, routing.offsets, routing.slots}, {out, {}},
         DispatchAttrs{routing.top_k}, label);
  return out;
}

}  // namespace millrace
