#include "runtime/plan/nodes/mamba/mamba_conv.h"

#include "kernels/ops/mamba_ops.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/mamba/cached_mamba.h"

namespace millrace {
namespace {

void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_xbc = d.GradientOf(n.outputs[0]), d_dt = d.GradientOf(n.outputs[1]);
  if (!d_xbc && !d_dt) return;
  const ValueId rows = n.inputs[0], of_gate = d.GradientOf(rows);
  MR_CHECK(d_xbc && d_dt && of_gate, "node {}: x|B|C, dt and the gate all have readers", n.label);
  const ValueId d_rows = d.NewGradient(rows);
  std::vector<ValueId> inputs(n.inputs.begin(), n.inputs.begin() + 4), grads;
  for (size_t i = 1; i < 4; ++i) grads.push_back(d.ParamGrad(n.inputs[i]));
  inputs.insert(inputs.end(), {d_xbc, d_dt, of_gate});
  inputs.insert(inputs.end(), n.inputs.begin() + 4, n.inputs.end());  // documents
  d.Emit(kMambaConvGradNode, std::move(inputs), {d_rows}, std::move(grads), n, ":grad");
  d.SetGradient(rows, d_rows);  // of_gate is in it
}

View SequenceOf(const View& view, BatchShape shape) {
  return SequenceColumnsOf(view, shape, 0, view.layout.dims[1]);
}

// The columns that the convolution reads, and those of the steps.
View ConvColumns(const View& rows, BatchShape shape, const MambaAttrs& a) {
  return SequenceColumnsOf(rows, shape, a.inner(), a.conv_columns());
}
View StepColumns(const View& rows, BatchShape shape, const MambaAttrs& a) {
  return SequenceColumnsOf(rows, shape, a.inner() + a.conv_columns(), a.heads);
}

void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const MambaAttrs& attrs = Attrs<MambaAttrs>(node);
  const BatchShape shape = l.graph().shape;
  MambaConvOp<View> op;
  op.dt_min = attrs.dt_min, op.dt_max = attrs.dt_max;
  const View rows = storage.Read(node.inputs[0]);
  op.x = ConvColumns(rows, shape, attrs);
  op.dt_raw = StepColumns(rows, shape, attrs);
  op.weight = storage.Read(node.inputs[1]);
  op.bias = storage.Read(node.inputs[2]);
  op.dt_bias = storage.Read(node.inputs[3]);
  if (node.inputs.size() > 4) op.documents = storage.Read(node.inputs[4]);
  op.out = SequenceOf(storage.Write(node.outputs[0]), shape);
  op.dt = SequenceOf(storage.Write(node.outputs[1]), shape);
  l.Push(op, node);
}

void LowerGrad(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const MambaAttrs& attrs = Attrs<MambaAttrs>(node);
  const BatchShape shape = l.graph().shape;
  const ValueId of_gate = node.inputs[6], out = node.outputs[0];
  MR_CHECK(storage.CanReplace(of_gate, out), "{}: writes over {}, which is read again later",
           node.label, l.graph().value(of_gate).name);
  MambaConvGradOp<View> op;
  op.dt_min = attrs.dt_min, op.dt_max = attrs.dt_max;
  const View rows = storage.Read(node.inputs[0]);
  op.x = ConvColumns(rows, shape, attrs);
  op.dt_raw = StepColumns(rows, shape, attrs);
  op.weight = storage.Read(node.inputs[1]);
  op.bias = storage.Read(node.inputs[2]);
  op.dt_bias = storage.Read(node.inputs[3]);
  op.d_out = SequenceOf(storage.Read(node.inputs[4]), shape);
  op.d_dt = SequenceOf(storage.Read(node.inputs[5]), shape);
  if (node.inputs.size() > 7) op.documents = storage.Read(node.inputs[7]);
  const View d_rows = storage.WriteOver(out, of_gate);
  op.d_x = ConvColumns(d_rows, shape, attrs);
  op.d_dt_raw = StepColumns(d_rows, shape, attrs);
  op.d_weight = storage.Grad(node.grads[0], op.weight_update);
  op.d_bias = storage.Grad(node.grads[1], op.bias_update);
  op.d_dt_bias = storage.Grad(node.grads[2], op.dt_bias_update);
  l.Push(op, node);
}

FlopsPerToken Flops(const SemanticGraph& graph, const Node& node) {
  const std::vector<int64_t>& weight = graph.value(node.inputs[1]).dims;
  const double flops = 2.0 * static_cast<double>(weight[0]) * static_cast<double>(weight[1]);
  return {flops, flops};
}

}  // namespace

const NodeDef kMambaConvNode{.name = "mamba_conv",
                             .recompute = RecomputeClass::kCheap,
                             .gradient = Gradient,
                             .lower = Lower,
                             .flops = Flops};
const NodeDef kMambaConvGradNode{.name = "mamba_conv_grad", .lower = LowerGrad};

MambaConvOutputs MambaConv(ForwardBuilder& b, ValueId rows, const std::string& weight,
                           const std::string& bias, const std::string& dt_bias,
                           const MambaAttrs& attrs, const std::string& label) {
  CheckMamba(attrs, label);
  b.CheckAllRows(rows, kMambaParts, label);
  MR_REQUIRE(ErrorCode::kConfig, b.graph().context() == 1,
             "{}: a convolution and a scan along the sequence; parallel.context must be 1, it is "
             "{}",
             label, b.graph().context());
  MR_CHECK_EQ(b.Columns(rows, label), attrs.columns(), "node {}: columns of z|x|B|C|dt", label);
  const ValueId weight_value = b.Param(weight, label), bias_value = b.Param(bias, label),
                dt_bias_value = b.Param(dt_bias, label);
  const std::vector<int64_t>& taps = b.value(weight_value).dims;
  MR_CHECK(taps.size() == 2 && taps[0] == attrs.conv_columns(), "node {}: weight of {} rows", label,
           taps[0]);
  b.CheckDims(bias_value, {attrs.conv_columns()}, label);
  b.CheckDims(dt_bias_value, {attrs.heads}, label);
  const AxisSet split = b.value(rows).placement.Cut(1);
  for (const ValueId param : {weight_value, bias_value, dt_bias_value})
    MR_CHECK(b.value(param).placement.Cut(0) == split, "node {}: {} is {}, its input {}", label,
             b.value(param).name, ToString(b.value(param).placement),
             ToString(b.value(rows).placement));
  const ValuePlacement placement = b.value(rows).placement;
  const ValueId xbc =
      b.NewActivation(label, {b.shape().rows(), attrs.conv_columns()}, placement, kConvParts);
  const ValueId dt = b.NewStatistic(label + ".dt", {b.shape().rows(), attrs.heads}, placement);
  const std::vector<ValueId> inputs = {rows, weight_value, bias_value, dt_bias_value};
  if (b.cache() != nullptr)
    PushConvRows(b, inputs, {xbc, dt}, attrs, label);
  else
    b.Push(kMambaConvNode, b.WithDocuments(inputs), {xbc, dt}, attrs, label);
  return {xbc, dt};
}

}  // namespace millrace
