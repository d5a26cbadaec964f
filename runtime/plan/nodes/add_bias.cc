#include "runtime/plan/nodes/add_bias.h"

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/strips.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/linear.h"

namespace millrace {
namespace {

// x has the sum's own gradient: no node, the same value.
void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  d.Emit(kBiasGradNode, {d_y}, {}, {d.ParamGrad(n.inputs[1])}, n, ":d_bias");
  Contribute(d, n.inputs[0], d_y, n);
}

void Lower(Lowering& l, const Step& step) {
  ValueStorage& storage = l.storage();
  AddBiasOp<View> op;
  const ValueId x = step.node->inputs[0], out = step.node->outputs[0];
  op.x = storage.Read(x);
  op.bias = storage.Read(step.node->inputs[1]);
  op.out = storage.CanReplace(x, out) ? storage.WriteOver(out, x) : storage.Write(out);
  using Op = AddBiasOp<View>;
  PushStrips(l, *step.node, l.graph().value(out), op, {&Op::x, &Op::out});
}

}  // namespace

const NodeDef kAddBiasNode{
    .name = "add_bias", .recompute = RecomputeClass::kDear, .gradient = Gradient, .lower = Lower};

ValueId AddBias(ForwardBuilder& b, ValueId x, const std::string& bias, const std::string& label) {
  const ValueId bias_value = b.Param(bias, label);
  const int64_t width = b.Columns(x, label);
  b.CheckDims(bias_value, {width}, label);
  const ValuePlacement& placement = b.value(x).placement;
  MR_CHECK(placement.partial.empty() && b.value(bias_value).placement.Cut(0) == placement.Cut(1),
           "node {}: a bias {} onto {}", label, ToString(b.value(bias_value).placement),
           ToString(placement));
  const ValueId out = b.NewActivation(label, {b.RowsOf(x, label), width}, placement);
  b.Push(kAddBiasNode, {x, bias_value}, {out}, {}, label);
  return out;
}

}  // namespace millrace
