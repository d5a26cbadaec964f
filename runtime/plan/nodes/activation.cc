#include "runtime/plan/nodes/activation.h"

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"

namespace millrace {
namespace {

void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId d_x = d.NewGradient(n.inputs[0]);
  d.Emit(kActivationGradNode, {n.inputs[0], d_y}, {d_x}, {}, n, ":grad");
  Contribute(d, n.inputs[0], d_x, n);
}

void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  const ActivationKind kind = Attrs<ActivationAttrs>(node).kind;
  if (CanLeaveActivation(l, node.inputs[0], kind, node.outputs[0]))
    return LeaveActivation(l, node.inputs[0], kind, node.outputs[0]);
  ActivationOp<View> op;
  static_cast<ActivationAttrs&>(op) = Attrs<ActivationAttrs>(node);
  op.x = l.storage().Read(node.inputs[0]);
  op.out = l.storage().Write(node.outputs[0]);
  op.magnitude = l.magnitudes().Form(l, node.outputs[0]);
  l.Push(op, node);
}

void LowerGrad(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  ActivationGradOp<View> op;
  op.kind = Attrs<ActivationAttrs>(node).kind;
  const ValueId x = node.inputs[0], d_out = node.inputs[1], d_x = node.outputs[0];
  op.x = storage.Read(x);
  op.d_out = storage.Read(d_out);
  op.d_x = storage.CanReplace(x, d_x)                            ? storage.WriteOver(d_x, x)
           : !IsGated(op.kind) && storage.CanReplace(d_out, d_x) ? storage.WriteOver(d_x, d_out)
                                                                 : storage.Write(d_x);
  op.magnitude = l.magnitudes().Form(l, d_x);
  l.Push(op, node);
}

}  // namespace

const NodeDef kActivationNode{.name = "activation",
                              .recompute = RecomputeClass::kCheap,
                              .gradient = Gradient,
                              .lower = Lower};
const NodeDef kActivationGradNode{.name = "activation_grad", .lower = LowerGrad};

ValueId Activation(ForwardBuilder& b, ValueId x, ActivationKind kind, const std::string& label) {
  const int64_t columns = b.Columns(x, label);
  MR_CHECK(!IsGated(kind) || columns % 2 == 0, "node {}: swiglu of {} columns", label, columns);
  const int64_t width = IsGated(kind) ? columns / 2 : columns;
  // SwiGLU's gate and up columns lie apart: a cut of both together would separate them.
  const ValuePlacement& from = b.value(x).placement;
  const ValuePlacement placement = IsGated(kind) && b.value(x).parts != 2
                                       ? RowwisePlacement(from, label)
                                       : ElementwisePlacement(from, label);
  const ValueId out = b.NewActivation(label, {b.RowsOf(x, label), width}, placement);
  b.Push(kActivationNode, {x}, {out}, ActivationAttrs{kind}, label);
  return out;
}

bool IsGelu(const Node& node) {
  return node.kind == &kActivationNode &&
         Attrs<ActivationAttrs>(node).kind == ActivationKind::kGelu;
}

bool IsGeluGrad(const Node& node) {
  return node.kind == &kActivationGradNode &&
         Attrs<ActivationAttrs>(node).kind == ActivationKind::kGelu;
}

}  // namespace millrace
