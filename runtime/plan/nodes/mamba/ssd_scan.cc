#include "runtime/plan/nodes/mamba/ssd_scan.h"

#include "kernels/ops/mamba_ops.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/mamba/cached_mamba.h"

namespace millrace {
namespace {

void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId xbc = n.inputs[0], dt = n.inputs[1];
  const ValueId d_xbc = d.NewGradient(xbc), d_dt = d.NewGradient(dt);
  std::vector<ValueId> inputs = {xbc, dt, n.inputs[2], n.inputs[3], d_y};
  inputs.insert(inputs.end(), n.inputs.begin() + 4, n.inputs.end());  // documents
  d.Emit(kSsdScanGradNode, std::move(inputs), {d_xbc, d_dt},
         {d.ParamGrad(n.inputs[2]), d.ParamGrad(n.inputs[3])}, n, ":grad");
  Contribute(d, xbc, d_xbc, n);
  Contribute(d, dt, d_dt, n);
}

// Where x, b and c lie in x|B|C.
struct Operands {
  View x, b, c;
};
Operands OperandsOf(const View& xbc, BatchShape shape, const MambaAttrs& a) {
  const int64_t of_group = a.groups * a.state;
  return {SequenceHeadsOf(xbc, shape, 0, a.heads, a.head_dim),
          SequenceHeadsOf(xbc, shape, a.inner(), a.groups, a.state),
          SequenceHeadsOf(xbc, shape, a.inner() + of_group, a.groups, a.state)};
}

View StepsOf(const View& dt, BatchShape shape) {
  return SequenceColumnsOf(dt, shape, 0, dt.layout.dims[1]);
}

void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const MambaAttrs& attrs = Attrs<MambaAttrs>(node);
  const BatchShape shape = l.graph().shape;
  SsdScanOp<View> op;
  op.chunk = attrs.chunk;
  const Operands in = OperandsOf(storage.Read(node.inputs[0]), shape, attrs);
  op.x = in.x, op.b = in.b, op.c = in.c;
  op.dt = StepsOf(storage.Read(node.inputs[1]), shape);
  op.a_log = storage.Read(node.inputs[2]);
  op.d = storage.Read(node.inputs[3]);
  if (node.inputs.size() > 4) op.documents = storage.Read(node.inputs[4]);
  op.out = SequenceHeadsOf(storage.Write(node.outputs[0]), shape, 0, attrs.heads, attrs.head_dim);
  l.Push(op, node);
}

void LowerGrad(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const MambaAttrs& attrs = Attrs<MambaAttrs>(node);
  const BatchShape shape = l.graph().shape;
  SsdScanGradOp<View> op;
  op.chunk = attrs.chunk;
  const Operands in = OperandsOf(storage.Read(node.inputs[0]), shape, attrs);
  op.x = in.x, op.b = in.b, op.c = in.c;
  op.dt = StepsOf(storage.Read(node.inputs[1]), shape);
  op.a_log = storage.Read(node.inputs[2]);
  op.d = storage.Read(node.inputs[3]);
  op.d_out = SequenceHeadsOf(storage.Read(node.inputs[4]), shape, 0, attrs.heads, attrs.head_dim);
  if (node.inputs.size() > 5) op.documents = storage.Read(node.inputs[5]);
  const Operands out = OperandsOf(storage.Write(node.outputs[0]), shape, attrs);
  op.d_x = out.x, op.d_b = out.b, op.d_c = out.c;
  op.d_dt = StepsOf(storage.Write(node.outputs[1]), shape);
  op.d_a_log = storage.Grad(node.grads[0], op.a_log_update);
  op.d_d = storage.Grad(node.grads[1], op.d_update);
  l.Push(op, node);
}

// The recurrence's, as Megatron-LM counts it (training.py, num_floating_point_operations): 7 per
// element of the state. The products of a chunked scan are more; they are the kernel's affair.
FlopsPerToken Flops(const SemanticGraph&, const Node& node) {
  const MambaAttrs& attrs = Attrs<MambaAttrs>(node);
  const double flops = 7.0 * static_cast<double>(attrs.inner() * attrs.state);
  return {flops, flops};
}

}  // namespace

const NodeDef kSsdScanNode{.name = "ssd_scan",
                           .recompute = RecomputeClass::kDear,
                           .gradient = Gradient,
                           .lower = Lower,
                           .flops = Flops};
const NodeDef kSsdScanGradNode{.name = "ssd_scan_grad", .lower = LowerGrad};

ValueId SsdScan(ForwardBuilder& b, ValueId xbc, ValueId dt, const std::string& a_log,
                const std::string& d, const MambaAttrs& attrs, const std::string& label) {
  CheckMamba(attrs, label);
  b.CheckAllRows(xbc, kConvParts, label);
  MR_CHECK_EQ(b.Columns(xbc, label), attrs.conv_columns(), "node {}: columns of x|B|C", label);
  MR_CHECK_EQ(b.Columns(dt, label), attrs.heads, "node {}: columns of dt", label);
  const AxisSet split = b.value(xbc).placement.Cut(1);  // by heads
  const ValueId a_log_value = b.Param(a_log, label), d_value = b.Param(d, label);
  for (const ValueId param : {a_log_value, d_value}) {
    b.CheckDims(param, {attrs.heads}, label);
    MR_CHECK(b.value(param).placement.Cut(0) == split, "node {}: {} is {}, x|B|C {}", label,
             b.value(param).name, ToString(b.value(param).placement),
             ToString(b.value(xbc).placement));
  }
  const ValueId out =
      b.NewActivation(label, {b.shape().rows(), attrs.inner()}, {{AxisSet(), split}, {}});
  const std::vector<ValueId> inputs = {xbc, dt, a_log_value, d_value};
  if (b.cache() != nullptr)
    PushScanRows(b, inputs, out, attrs, label);
  else
    b.Push(kSsdScanNode, b.WithDocuments(inputs), {out}, attrs, label);
  return out;
}

}  // namespace millrace
