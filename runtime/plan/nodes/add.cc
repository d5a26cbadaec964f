#include "runtime/plan/nodes/add.h"

#include "runtime/plan/lower/strips.h"

namespace millrace {
namespace {

// Both terms have the sum's own gradient: no node, the same value.
void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  Contribute(d, n.inputs[1], d_y, n);
  Contribute(d, n.inputs[0], d_y, n);
}

void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  AddOp<View> op;
  const ValueId a = node.inputs[0], b = node.inputs[1], out = node.outputs[0];
  op.a = storage.Read(a);
  op.b = storage.Read(b);
  op.out = storage.CanReplace(a, out)   ? storage.WriteOver(out, a)
           : storage.CanReplace(b, out) ? storage.WriteOver(out, b)
                                        : storage.Write(out);
  using Op = AddOp<View>;
  PushStrips(l, node, l.graph().value(out), op, {&Op::a, &Op::b, &Op::out});
}

}  // namespace

const NodeDef kAddNode{
    .name = "add", .recompute = RecomputeClass::kDear, .gradient = Gradient, .lower = Lower};

ValueId Add(ForwardBuilder& b, ValueId x, ValueId y, const std::string& label) {
  const int64_t width = b.Columns(x, label);
  MR_CHECK_EQ(width, b.Columns(y, label), "node {}: columns of the two terms", label);
  const int64_t rows = b.RowsOf(x, label);
  MR_CHECK_EQ(rows, b.RowsOf(y, label), "node {}: rows of the two terms", label);
  const ValueId out = b.NewActivation(
      label, {rows, width}, SumPlacement(b.value(x).placement, b.value(y).placement, label));
  b.Push(kAddNode, {x, y}, {out}, {}, label);
  return out;
}

void Contribute(Differentiator& d, ValueId of, ValueId contribution, const Node& forward) {
  if (!d.Differentiable(of)) return;
  const ValueId gradient = d.GradientOf(of);
  if (!gradient) return d.SetGradient(of, contribution);
  const ValueId sum = d.NewTemporary(d.value(contribution).name + "+", of);
  d.Emit(kAddNode, {gradient, contribution}, {sum}, {}, forward, ":sum");
  d.SetGradient(of, sum);
}

}  // namespace millrace
