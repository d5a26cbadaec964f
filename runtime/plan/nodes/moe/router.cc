#include "runtime/plan/nodes/moe/router.h"

#include <utility>

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/linear.h"

namespace millrace {
namespace {

struct RouterNodeAttrs {
  RouteAttrs route;
  DType compute = DType::kF32;  // what the products of the gradient are of
};

struct BalanceAttrs {
  RouterBalanceAttrs op;
  AxisSet axes;         // of the ranks that have rows of a group
  bool pooled = false;  // stats are summed over the layers
};

void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_weights = d.GradientOf(n.outputs[1]), d_stats = d.GradientOf(n.outputs[2]);
  const ValueId logits = n.inputs[0];
  d.Emit(kRouterTallyNode, {logits, n.outputs[0]}, {}, {}, n, ":tally");
  if (!d_weights) return;
  const ValueId d_logits = d.NewGradient(logits, Attrs<RouterNodeAttrs>(n).compute);
  d.Emit(kRouterGradNode, {logits, n.outputs[0], d_weights, d_stats}, {d_logits}, {}, n, ":grad");
  Contribute(d, logits, d_logits, n);
}

// As a head's: it was formed with the loss.
void BalanceGradient(Differentiator& d, const Node& n) {
  for (size_t l = 0; l < n.inputs.size(); ++l)
    if (n.outputs[l + 1]) Contribute(d, n.inputs[l], n.outputs[l + 1], n);
}

void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  RouteOp<View> op;
  static_cast<RouteAttrs&>(op) = Attrs<RouterNodeAttrs>(node).route;
  op.logits = l.storage().Read(node.inputs[0]);
  op.bias = l.storage().Read(node.inputs[1]);
  op.ids = l.storage().Write(node.outputs[0]);
  op.weights = l.storage().Write(node.outputs[1]);
  l.Push(op, node);
  if (!node.outputs[2]) return;
  RouterStatsOp<View> stats;
  stats.score = op.score;
  stats.logits = op.logits;
  stats.ids = op.ids;
  stats.stats = l.storage().Write(node.outputs[2]);
  l.Push(stats, node, ":stats");
}

void LowerGrad(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  RouteGradOp<View> op;
  static_cast<RouteAttrs&>(op) = Attrs<RouterNodeAttrs>(node).route;
  op.logits = l.storage().Read(node.inputs[0]);
  op.ids = l.storage().Read(node.inputs[1]);
  op.d_weights = l.storage().Read(node.inputs[2]);
  op.balance = l.storage().Read(node.inputs[3]);
  op.d_logits = l.storage().Write(node.outputs[0]);
  l.Push(op, node);
}

void LowerTally(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  RouterStatsOp<View> op;
  op.score = Attrs<RouterNodeAttrs>(node).route.score;
  op.logits = l.storage().Read(node.inputs[0]);
  op.ids = l.storage().Read(node.inputs[1]);
  op.stats = l.storage().Tally(node.label, TallyKind::kRouter,
                               DenseLayout(DType::kF32, {1, 2, op.logits.layout.dims[1]}));
  l.Push(op, node);
}

// Whether the loss depends on the choice or not: every row has been routed.
void SlotsGradient(Differentiator& d, const Node& n) {
  if (n.inputs[1])
    d.Emit(kExpertLoadNode, {n.outputs[0]}, {}, {d.ParamGrad(n.inputs[1])}, n, ":load");
}

void LowerLoad(Lowering& l, const Step& step) {
  ExpertLoadOp<View> op;
  op.offsets = l.storage().Read(step.node->inputs[0]);
  op.load = l.storage().Grad(step.node->grads[0], op.update);
  l.Push(op, *step.node);
}

void LowerSlots(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ExpertSlotsOp<View> op;
  op.ids = l.storage().Read(node.inputs[0]);
  op.offsets = l.storage().Write(node.outputs[0]);
  op.slots = l.storage().Write(node.outputs[1]);
  op.pairs = l.storage().Write(node.outputs[2]);
  l.Push(op, node);
}

// Sums stats over the ranks of a group, in place: nobody else reads them.
View SumOverRanks(Lowering& l, const Node& node, View stats, AxisSet axes) {
  if (axes.empty()) return stats;
  AllReduceOp<View> sum;
  sum.axes = axes;
  sum.buffer = stats;
  sum.buffer.layout = DenseLayout(stats.layout.dtype, {stats.layout.numel()});
  l.Push(sum, node, ":sum");
  return stats;
}

void LowerBalance(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  const BalanceAttrs& attrs = Attrs<BalanceAttrs>(node);
  const View loss = l.storage().Write(node.outputs[0]), scalars = l.storage().Scalars();
  View pooled;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    View stats = l.storage().Read(node.inputs[i]);
    if (attrs.pooled && i > 0) {
      AddOp<View> add;
      add.a = add.out = pooled;
      add.b = stats;
      l.Push(add, node, ":pool");
    }
    if (i == 0) pooled = stats;
    if (attrs.pooled && i + 1 < node.inputs.size()) continue;
    RouterBalanceOp<View> op;
    static_cast<RouterBalanceAttrs&>(op) = attrs.op;
    op.stats = SumOverRanks(l, node, attrs.pooled ? pooled : stats, attrs.axes);
    op.loss_sum = loss;
    op.loss_update = i == 0 || attrs.pooled ? Update::kOverwrite : Update::kAccumulate;
    op.balance = l.storage().Write(node.outputs[attrs.pooled ? 1 : i + 1]);
    op.scalars = scalars;
    l.Push(op, node);
  }
}

// Groups of a rank's rows whose loads are evened apart, equal and one behind the other: sequences,
// or the microbatch.
struct RowGroups {
  int64_t count = 1;
  AxisSet axes;  // of the ranks that have rows of a group
};

RowGroups GroupsOf(const ForwardBuilder& b, AuxLossKind kind) {
  const Mesh& mesh = b.mesh();
  if (kind != AuxLossKind::kSequence) return {1, mesh.Wide(AxisSet::All() - Axis::kPipe)};
  const int64_t batch = b.shape().batch, ranks = mesh.Size(Axis::kTensor),
                strips = ranks == 1 ? 1 : b.shape().strips;
  // Each rank has whole sequences of each strip, as far as this axis goes; or a part of each strip,
  // and no strip has rows of two sequences.
  if (batch % (ranks * strips) == 0) return {batch / ranks, mesh.Wide(AxisSet(Axis::kContext))};
  MR_REQUIRE(ErrorCode::kConfig, strips % batch == 0,
             "model.moe.aux_loss is sequence, and parallel.tensor {} and parallel.tensor_strips {} "
             "cut {} sequences (train.micro_batch) so that ranks have parts of different ones; a "
             "micro_batch that is a multiple of {} is allowed, or one that divides tensor_strips, "
             "or aux_loss switch or pooled",
             ranks, strips, batch, ranks * strips);
  return {batch, mesh.Wide(AxisSet(Axis::kContext) | AxisSet(Axis::kTensor))};
}

}  // namespace

const NodeDef kRouterNode{.name = "router", .gradient = Gradient, .lower = Lower};
const NodeDef kRouterGradNode{.name = "router_grad", .lower = LowerGrad};
const NodeDef kRouterTallyNode{.name = "router_tally", .lower = LowerTally};
const NodeDef kSlotsNode{.name = "expert_slots", .gradient = SlotsGradient, .lower = LowerSlots};
const NodeDef kExpertLoadNode{.name = "expert_load", .lower = LowerLoad};
const NodeDef kBalanceNode{.name = "balance", .gradient = BalanceGradient, .lower = LowerBalance};

Routing Route(ForwardBuilder& b, ValueId x, const std::string& weight, const std::string& bias,
              const RouteAttrs& attrs, int64_t top_k, AuxLossKind balance,
              const std::string& label) {
  const ValueId logits = LinearF32(b, x, weight, label + ".logits");
  const int64_t rows = b.RowsOf(logits, label), experts = b.Columns(logits, label);
  const ValuePlacement placement = RowwisePlacement(b.value(logits).placement, label);
  const ValueId bias_value = b.OptionalParam(bias, label);
  b.CheckDims(bias_value, {experts}, label);
  if (bias_value)
    MR_CHECK(b.value(bias_value).dtype == DType::kF32, "node {}: bias {} is {}; f32 is needed",
             label, bias, Name(b.value(bias_value).dtype));
  const auto ints = [&](const char* name, std::vector<int64_t> dims) {
    return b.NewValue(label + name, ValueRole::kActivation, DType::kI32, std::move(dims),
                      placement);
  };
  Routing r;
  r.top_k = top_k;
  r.ids = ints(".ids", {rows, top_k});
  r.weights = b.NewStatistic(label + ".weights", {rows, top_k}, placement);
  if (balance != AuxLossKind::kNone)
    r.stats = b.NewStatistic(label + ".stats", {GroupsOf(b, balance).count, 2, experts}, placement);
  b.Push(kRouterNode, {logits, bias_value}, {r.ids, r.weights, r.stats},
         RouterNodeAttrs{attrs, b.value(x).dtype}, label);
  r.offsets = ints(".offsets", {experts + 1});
  r.slots = ints(".slots", {rows, top_k});
  r.pairs = ints(".pairs", {rows * top_k});
  b.Push(kSlotsNode, {r.ids, bias_value}, {r.offsets, r.slots, r.pairs}, {}, label + ".slots");
  return r;
}

void Balance(ForwardBuilder& b, const std::vector<ValueId>& stats, AuxLossKind kind, int64_t top_k,
             const std::string& loss, const std::string& label) {
  BalanceAttrs attrs{
      .op = {}, .axes = GroupsOf(b, kind).axes, .pooled = kind == AuxLossKind::kPooled};
  const std::vector<int64_t> dims = b.value(stats.at(0)).dims;  // [n,2,E]
  const auto experts = static_cast<double>(dims[2]), layers = static_cast<double>(stats.size());
  attrs.op.rows = b.LocalRows(label) / dims[0];
  attrs.op.tokens = attrs.op.rows * b.mesh().Size(attrs.axes);
  const auto tokens = static_cast<double>(attrs.op.tokens);
  attrs.op.factor = attrs.pooled ? experts / (layers * layers * tokens * tokens)
                                 : experts / (static_cast<double>(top_k) * tokens * tokens);
  const LossId id = b.Loss(loss, label);
  attrs.op.loss_weight = b.graph().loss(id).weight;
  std::vector<ValueId> outputs = {b.NewLoss(id, label)};
  ValueId slope;
  for (const ValueId of : stats) {
    MR_CHECK(b.value(of).dims == dims, "node {}: layers of other experts or groups", label);
    if (!slope || !attrs.pooled)
      slope = b.NewStatistic("d(" + b.value(of).name + ")", {dims[0], dims[2]});
    outputs.push_back(slope);
  }
  b.Push(kBalanceNode, stats, std::move(outputs), attrs, label);
}

}  // namespace millrace
