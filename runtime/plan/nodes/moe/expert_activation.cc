#include "runtime/plan/nodes/moe/expert_activation.h"

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"

namespace millrace {
namespace {

void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId x = n.inputs[0], weights = n.inputs[1];
  const ValueId d_x = d.NewGradient(x), d_weights = d.NewGradient(weights);
  d.Emit(kExpertActivationGradNode, {x, weights, d_y, n.inputs[2]}, {d_x, d_weights}, {}, n,
         ":grad");
  Contribute(d, x, d_x, n);
  Contribute(d, weights, d_weights, n);
}

void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ExpertActivationOp<View> op;
  static_cast<ExpertActivationAttrs&>(op) = Attrs<ExpertActivationAttrs>(node);
  op.x = l.storage().Read(node.inputs[0]);
  op.weights = l.storage().Read(node.inputs[1]);
  op.offsets = l.storage().Read(node.inputs[2]);
  op.out = l.storage().Write(node.outputs[0]);
  l.Push(op, node);
}

void LowerGrad(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  ExpertActivationGradOp<View> op;
  static_cast<ExpertActivationAttrs&>(op) = Attrs<ExpertActivationAttrs>(node);
  const ValueId x = node.inputs[0], d_x = node.outputs[0];
  op.x = storage.Read(x);
  op.weights = storage.Read(node.inputs[1]);
  op.d_out = storage.Read(node.inputs[2]);
  op.offsets = storage.Read(node.inputs[3]);
  op.d_x = storage.CanReplace(x, d_x) ? storage.WriteOver(d_x, x) : storage.Write(d_x);
  op.d_weights = storage.Write(node.outputs[1]);
  l.Push(op, node);
}

}  // namespace

const NodeDef kExpertActivationNode{.name = "expert_activation",
                                    .recompute = RecomputeClass::kCheap,
                                    .gradient = Gradient,
                                    .lower = Lower};
const NodeDef kReceivedActivationNode{.name = "expert_activation",
                                      .recompute = RecomputeClass::kExchange,
                                      .gradient = Gradient,
                                      .lower = Lower};
const NodeDef kExpertActivationGradNode{.name = "expert_activation_grad", .lower = LowerGrad};

ValueId ExpertActivation(ForwardBuilder& b, ValueId x, ValueId weights, const Routing& routing,
                         ActivationKind kind, const std::string& label) {
  const int64_t columns = b.Columns(x, label);
  MR_CHECK(!IsGated(kind) || columns % 2 == 0, "node {}: {} of {} columns", label, Name(kind),
           columns);
  const ValueId out =
      b.NewActivation(label, {b.RowsOf(x, label), IsGated(kind) ? columns / 2 : columns},
                      RowwisePlacement(b.value(x).placement, label));
  b.Push(routing.expected > 0 ? kReceivedActivationNode : kExpertActivationNode,
         {x, weights, routing.offsets}, {out}, ExpertActivationAttrs{kind, routing.expected},
         label);
  return out;
}

}  // namespace millrace
