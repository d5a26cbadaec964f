#include "runtime/plan/nodes/exchange.h"

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"

namespace millrace {
namespace {

void Gradient(Differentiator& d, const Node& n, const NodeDef& inverse) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId d_x = d.NewGradient(n.inputs[0]);
  d.Emit(inverse, {d_y}, {d_x}, {}, n, ":grad");
  Contribute(d, n.inputs[0], d_x, n);
}
void GradientOfGather(Differentiator& d, const Node& n) { Gradient(d, n, kScatterSumRowsNode); }
void GradientOfScatter(Differentiator& d, const Node& n) { Gradient(d, n, kGatherRowsNode); }

// Strip by strip, where the axes are those that cut rows between blocks.
std::vector<RowStrip> StripsOfExchange(Lowering& l, const Node& node, ValueId local) {
  const Value& value = l.graph().value(local);
  if (Attrs<ExchangeAttrs>(node).axes == AxisSet(Axis::kTensor)) return StripsOf(l.graph(), value);
  return {{0, value.dims[0], {}}};
}

template <class Op>
void LowerExchange(Lowering& l, const Node& node, ValueId shard_value, ValueId full_value,
                   const View& shard, const View& full) {
  Op op;
  op.axes = Attrs<ExchangeAttrs>(node).axes;
  const int64_t ranks = l.graph().value(full_value).dims[0] / l.graph().value(shard_value).dims[0];
  const bool between = op.axes == AxisSet(Axis::kTensor);
  int number = 0;
  for (const RowStrip& strip : StripsOfExchange(l, node, shard_value)) {
    op.shard = InOneRow(Rows(shard, strip.begin, strip.rows));
    op.full = InOneRow(Rows(full, strip.begin * ranks, strip.rows * ranks));
    l.Push(op, node);
    if (between) l.last().strip = number++;
  }
}

void LowerGather(Lowering& l, const Step& step) {
  const ValueId in = step.node->inputs[0], out = step.node->outputs[0];
  const View shard = l.storage().Read(in), full = l.storage().Write(out);
  LowerExchange<AllGatherOp<View>>(l, *step.node, in, out, shard, full);
}

void LowerScatter(Lowering& l, const Step& step) {
  const ValueId in = step.node->inputs[0], out = step.node->outputs[0];
  const View full = l.storage().Read(in), shard = l.storage().Write(out);
  LowerExchange<ReduceScatterOp<View>>(l, *step.node, out, in, shard, full);
}

void LowerSum(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  const ValueId in = node.inputs[0], out = node.outputs[0];
  MR_CHECK(l.storage().CanReplace(in, out), "{}: sums in place, but {} is read again later",
           node.label, l.graph().value(in).name);
  AllReduceOp<View> op;
  op.axes = Attrs<ExchangeAttrs>(node).axes;
  op.buffer = InOneRow(l.storage().WriteOver(out, in));
  l.Push(op, node);
}

// What is to be summed over `axes`.
void RequirePartial(const ForwardBuilder& b, ValueId x, AxisSet axes, const std::string& label) {
  const ValuePlacement& placement = b.value(x).placement;
  MR_CHECK((placement.partial & axes) == axes, "node {}: rows to be summed over {} are {}", label,
           ToString(axes), ToString(placement));
}

int64_t ReceivedByGather(const SemanticGraph& graph, const Node& node) {
  return BytesOf(graph.value(node.outputs[0])) - BytesOf(graph.value(node.inputs[0]));
}

}  // namespace

const NodeDef kGatherRowsNode{.name = "gather_rows",
                              .recompute = RecomputeClass::kExchange,
                              .gradient = GradientOfGather,
                              .lower = LowerGather,
                              .received = ReceivedByGather};
const NodeDef kScatterSumRowsNode{.name = "scatter_sum_rows",
                                  .recompute = RecomputeClass::kNever,
                                  .gradient = GradientOfScatter,
                                  .lower = LowerScatter};
const NodeDef kSumRowsNode{.name = "sum_rows", .lower = LowerSum};

ValueId GatherRows(ForwardBuilder& b, ValueId x, AxisSet over, const std::string& label) {
  const AxisSet axes = b.mesh().Wide(over);
  if (axes.empty()) return x;
  ValuePlacement placement = b.value(x).placement;
  MR_CHECK((placement.Cut(0) & axes) == axes && placement.partial.empty(),
           "node {}: rows to be gathered over {} are {}", label, ToString(axes),
           ToString(placement));
  placement.cut[0] = placement.cut[0] - axes;
  const ValueId out =
      b.NewActivation(label, {b.RowsOf(x, label) * b.mesh().Size(axes), b.Columns(x, label)},
                      placement, b.value(x).parts);
  b.Push(kGatherRowsNode, {x}, {out}, ExchangeAttrs{axes}, label);
  return out;
}

ValueId ScatterSumRows(ForwardBuilder& b, ValueId x, AxisSet over, const std::string& label) {
  const AxisSet axes = b.mesh().Wide(over);
  if (axes.empty()) return x;
  ValuePlacement placement = b.value(x).placement;
  const int64_t rows = b.RowsOf(x, label), ranks = b.mesh().Size(axes);
  RequirePartial(b, x, axes, label);
  MR_REQUIRE(ErrorCode::kConfig, rows % ranks == 0,
             "node {}: {} rows, which {} ranks of {} do not divide", label, rows, ranks,
             ToString(axes));
  placement.partial = placement.partial - axes;
  placement.cut.resize(std::max<size_t>(placement.cut.size(), 1));
  placement.cut[0] = placement.cut[0] | axes;
  const ValueId out =
      b.NewActivation(label, {rows / ranks, b.Columns(x, label)}, placement, b.value(x).parts);
  b.Push(kScatterSumRowsNode, {x}, {out}, ExchangeAttrs{axes}, label);
  return out;
}

ValueId SumRows(ForwardBuilder& b, ValueId x, AxisSet over, const std::string& label) {
  const AxisSet axes = b.mesh().Wide(over);
  if (axes.empty()) return x;
  RequirePartial(b, x, axes, label);
  ValuePlacement placement = b.value(x).placement;
  placement.partial = placement.partial - axes;
  const ValueId out = b.NewActivation(label, {b.RowsOf(x, label), b.Columns(x, label)}, placement,
                                      b.value(x).parts);
  b.Push(kSumRowsNode, {x}, {out}, ExchangeAttrs{axes}, label);
  return out;
}

}  // namespace millrace
