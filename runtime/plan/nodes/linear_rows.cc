#include "runtime/plan/nodes/linear_rows.h"

#include <memory>

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/attention/cached_rows.h"
#include "runtime/plan/nodes/exchange.h"
#include "runtime/plan/nodes/linear.h"

namespace millrace {
namespace {

using Slices = std::vector<RowSlice>;

// The weight gradient fills the wait while d_x of gathered rows is summed (linear.cc).
void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId x = n.inputs[0], weight = n.inputs[1];
  const ValueId weight_grad = d.ParamGrad(weight);
  if (!d.Differentiable(x))
    return d.Emit(kLinearRowsGradWeightNode, {d_y, x}, {}, {weight_grad}, n, ":d_weight");
  d.EmitBeside(kGatherRowsNode, kLinearRowsGradWeightNode, {d_y, x}, {weight_grad}, n, ":d_weight");
  const ValueId d_x = d.NewGradient(x);
  d.Emit(kLinearRowsGradInputNode, {d_y, weight}, {d_x}, {}, n, ":d_input");
  Contribute(d, x, d_x, n);
}

// The slice's rows of a matrix [N,K].
View RowsOf(const View& matrix, const RowSlice& slice) {
  View rows = Rows(matrix, slice.begin.base, slice.rows);
  rows.rank_stride = slice.begin.stride * matrix.layout.strides[0];
  rows.rank_axes = slice.begin.axes;
  rows.rank_alike = slice.begin.alike;
  return rows;
}

// The rank's rows of the weight, end to end.
View OwnRows(Lowering& l, const Node& node, ValueId weight_value) {
  const View weight = l.storage().Read(weight_value);
  int64_t rows = 0;
  for (const RowSlice& slice : Attrs<Slices>(node)) rows += slice.rows;
  const View own = l.storage().Temporary(
      node.label + ".rows", DenseLayout(weight.layout.dtype, {rows, weight.layout.dims[1]}));
  int64_t at = 0;
  for (const RowSlice& slice : Attrs<Slices>(node)) {
    CastOp<View> copy;
    copy.x = InOneRow(RowsOf(weight, slice));
    copy.out = InOneRow(Rows(own, at, slice.rows));
    l.Push(copy, node, ":rows");
    at += slice.rows;
  }
  return own;
}

void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  MatmulOp<View> op;
  op.b = Transposed(OwnRows(l, node, node.inputs[1]));
  op.a = l.storage().Read(node.inputs[0]);
  LikeTraining(l, op.a.layout.dims[0], node.inputs[1], &op);
  op.out = l.storage().Write(node.outputs[0]);
  PushProducts(l, op, node);
}

void LowerGradInput(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  MatmulOp<View> op;
  op.b = OwnRows(l, node, node.inputs[1]);
  op.a = l.storage().Read(node.inputs[0]);
  op.out = l.storage().Write(node.outputs[0]);
  PushProducts(l, op, node);
}

// A whole gradient that is zero but for the rank's rows: one contribution, as of any product.
void LowerGradWeight(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  const View d_y = l.storage().Read(node.inputs[0]), x = l.storage().Read(node.inputs[1]);
  ConcatOp<View> contribution;
  contribution.out = InOneRow(l.storage().Grad(node.grads[0], contribution.update));
  const int64_t columns = x.layout.dims[1], numel = contribution.out.layout.numel();
  const View whole = l.storage().Temporary(node.label + ".whole",
                                           DenseLayout(DType::kF32, {numel / columns, columns}));
  ZeroRangesOp<View> zero;
  zero.flat = InOneRow(whole);
  zero.ranges = std::make_shared<const std::vector<Range>>(1, Range{0, numel});
  l.Push(zero, node, ":zero");
  int64_t at = 0;
  for (const RowSlice& slice : Attrs<Slices>(node)) {
    View of_slice = d_y;
    of_slice.offset += at;
    of_slice.layout.dims[1] = slice.rows;
    MatmulOp<View> op;
    op.a = Transposed(of_slice);
    op.b = x;
    op.out = RowsOf(whole, slice);
    l.Push(op, node);
    at += slice.rows;
  }
  contribution.x = InOneRow(whole);
  l.Push(contribution, node, ":add");
}

FlopsPerToken Flops(const SemanticGraph& graph, const Node& node) {
  const double flops = 2.0 * static_cast<double>(graph.value(node.outputs[0]).dims[1]) *
                       static_cast<double>(graph.value(node.inputs[1]).dims[1]);
  return {flops, flops};
}

}  // namespace

const NodeDef kLinearRowsNode{.name = "linear_rows",
                              .recompute = RecomputeClass::kDear,
                              .gradient = Gradient,
                              .lower = Lower,
                              .flops = Flops};
const NodeDef kLinearRowsGradInputNode{.name = "linear_rows_grad_input", .lower = LowerGradInput};
const NodeDef kLinearRowsGradWeightNode{.name = "linear_rows_grad_weight",
                                        .lower = LowerGradWeight};

ValueId LinearRows(ForwardBuilder& b, ValueId x, const std::string& weight,
                   const std::vector<RowSlice>& slices, AxisSet axes, const std::string& label) {
  const ValueId weight_value = b.Param(weight, label);
  const int64_t all = b.RowsOfMatrix(weight_value, b.Columns(x, label), label);
  const ValuePlacement& placement = b.value(x).placement;
  MR_CHECK(b.value(weight_value).placement.whole() && placement.partial.empty() &&
               placement.Cut(1).empty(),
           "node {}: rows of a weight {} by {}", label, ToString(b.value(weight_value).placement),
           ToString(placement));
  int64_t width = 0;
  for (const RowSlice& slice : slices) {
    const int64_t last = (b.mesh().Size(slice.begin.axes) - 1) / slice.begin.alike;
    MR_CHECK_LE(slice.begin.base + last * slice.begin.stride + slice.rows, all,
                "node {}: the last rank's rows of {}", label, weight);
    width += slice.rows;
  }
  const ValueId out =
      b.NewActivation(label, {b.RowsOf(x, label), width}, {{placement.Cut(0), axes}, {}},
                      static_cast<int>(slices.size()));
  b.Push(kLinearRowsNode, {x, weight_value}, {out}, slices, label);
  return out;
}

}  // namespace millrace
