#include "runtime/plan/nodes/mamba/gated_norm.h"

#include "kernels/ops/mamba_ops.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"

namespace millrace {
namespace {

void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_out = d.GradientOf(n.outputs[0]);
  if (!d_out) return;
  const ValueId y = n.inputs[0], rows = n.inputs[1], weight = n.inputs[2];
  const ValueId d_y = d.NewGradient(y), d_rows = d.NewGradient(rows);
  d.Emit(kGatedNormGradNode, {d_out, y, rows, weight, n.outputs[1]}, {d_y, d_rows},
         {d.ParamGrad(weight)}, n, ":grad");
  Contribute(d, y, d_y, n);
  Contribute(d, rows, d_rows, n);
}

void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const MambaAttrs& attrs = Attrs<MambaAttrs>(node);
  GatedNormOp<View> op;
  op.eps = attrs.eps;
  const ValueId y = node.inputs[0], out = node.outputs[0];
  op.y = storage.Read(y);
  op.z = ColumnsOf(storage.Read(node.inputs[1]), 0, attrs.inner());
  op.weight = storage.Read(node.inputs[2]);
  op.out = storage.CanReplace(y, out) ? storage.WriteOver(out, y) : storage.Write(out);
  op.rstd = storage.Write(node.outputs[1]);
  l.Push(op, node);
}

void LowerGrad(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const MambaAttrs& attrs = Attrs<MambaAttrs>(node);
  GatedNormGradOp<View> op;
  const ValueId d_out = node.inputs[0], d_y = node.outputs[0];
  op.d_out = storage.Read(d_out);
  op.y = storage.Read(node.inputs[1]);
  op.z = ColumnsOf(storage.Read(node.inputs[2]), 0, attrs.inner());
  op.weight = storage.Read(node.inputs[3]);
  op.rstd = storage.Read(node.inputs[4]);
  op.d_y = storage.CanReplace(d_out, d_y) ? storage.WriteOver(d_y, d_out) : storage.Write(d_y);
  const View d_rows = storage.Write(node.outputs[1]);
  op.d_z = ColumnsOf(d_rows, 0, attrs.inner());
  op.rest = ColumnsOf(d_rows, attrs.inner(), attrs.columns() - attrs.inner());
  op.d_weight = storage.Grad(node.grads[0], op.weight_update);
  l.Push(op, node);
}

}  // namespace

const NodeDef kGatedNormNode{.name = "gated_norm",
                             .recompute = RecomputeClass::kCheap,
                             .gradient = Gradient,
                             .lower = Lower};
const NodeDef kGatedNormGradNode{.name = "gated_norm_grad", .lower = LowerGrad};

ValueId GatedNorm(ForwardBuilder& b, ValueId y, ValueId rows, const std::string& weight,
                  const MambaAttrs& attrs, const std::string& label) {
  CheckMamba(attrs, label);
  b.CheckAllRows(y, 1, label);
  b.CheckAllRows(rows, kMambaParts, label);
  MR_CHECK_EQ(b.Columns(y, label), attrs.inner(), "node {}: columns of y", label);
  MR_CHECK_EQ(b.Columns(rows, label), attrs.columns(), "node {}: columns of z|x|B|C|dt", label);
  MR_CHECK(attrs.inner() % attrs.groups == 0, "node {}: {} columns in {} groups", label,
           attrs.inner(), attrs.groups);
  const ValueId weight_value = b.Param(weight, label);
  b.CheckDims(weight_value, {attrs.inner()}, label);
  const ValuePlacement placement = b.value(y).placement;
  MR_CHECK(b.value(weight_value).placement.Cut(0) == placement.Cut(1) &&
               b.value(rows).placement.Cut(1) == placement.Cut(1),
           "node {}: {} of {}, its input {}", label, b.value(weight_value).name,
           ToString(b.value(weight_value).placement), ToString(placement));
  const ValueId out = b.NewActivation(label, {b.shape().rows(), attrs.inner()}, placement);
  const ValueId rstd = b.NewStatistic(label + ".rstd", {b.shape().rows(), attrs.groups}, placement);
  b.Push(kGatedNormNode, {y, rows, weight_value}, {out, rstd}, attrs, label);
  return out;
}

}  // namespace millrace
