#include "runtime/plan/nodes/attention/attention.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/attention/cached_rows.h"

// With sequences split over ranks (context): keys and values of all ranks are gathered for the op
// and their gradients summed behind it. They are columns of the fused rows, so they are copied to
// this rank's place among the gathered ones, and back. What is gathered is a value, the last input
// of both nodes: formed again in the backward, once, also where attention is computed again, but
// where it is kept.
namespace millrace {
namespace {

void Gradient(Differentiator& d, const Node& n) {
  const ValueId d_y = d.GradientOf(n.outputs[0]);
  if (!d_y) return;
  const ValueId d_qkv = d.NewGradient(n.inputs[0]);
  std::vector<ValueId> inputs = {n.inputs[0], n.outputs[0], n.outputs[1], d_y};
  inputs.insert(inputs.end(), n.inputs.begin() + 1, n.inputs.end());  // documents, gathered keys
  d.Emit(kAttentionGradNode, std::move(inputs), {d_qkv}, {}, n, ":grad");
  Contribute(d, n.inputs[0], d_qkv, n);
}

// Columns of all heads' keys and values.
int64_t KeyColumns(const HeadsAttrs& attrs) { return 2 * attrs.kv_heads * attrs.head_dim; }

// Gathered rows [n*B*T/n, KeyColumns] as the op's keys or values: [n*B, T/n, Hkv, D].
View GatheredHeads(const Lowering& l, const View& rows, const HeadsAttrs& attrs, int64_t first) {
  const SemanticGraph& graph = l.graph();
  return HeadsOf(rows, {graph.context() * graph.shape.batch, graph.shape.seq}, attrs, first,
                 attrs.kv_heads);
}

// Keys and values of all ranks, rank by rank.
void LowerGatherKeys(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  const View qkv = l.storage().Read(node.inputs[0]), all = l.storage().Write(node.outputs[0]);
  const int64_t rows = qkv.layout.dims[0];
  CopyRowsOp<View> copy;
  copy.x = KeyColumnsOf(qkv, Attrs<AttentionNodeAttrs>(node));
  copy.out = Rows(all, 0, rows);
  copy.out.rank_stride = rows * all.layout.dims[1];
  copy.out.rank_axes = Axis::kContext;
  l.Push(copy, node, ":own_keys");
  AllGatherOp<View> gather;
  gather.axes = Axis::kContext;
  gather.full = InOneRow(all);
  l.Push(gather, node, ":keys");
}

int64_t ReceivedKeys(const SemanticGraph& graph, const Node& node) {
  const int64_t all = BytesOf(graph.value(node.outputs[0]));
  return all - all / graph.context();
}

// Of one sequence and head: tiles of 64 by 64, as our own kernels have them.
void ChooseSplit(Lowering& l, const Node& node) {
  constexpr int64_t kTile = 64;
  const int64_t ranks = l.graph().context(), rows = l.graph().shape.seq;
  int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
  for (int64_t c = 0; c < ranks; ++c) {
    const int64_t blocks = AttendedBlocks(ranks, rows, c, kTile);
    least = std::min(least, blocks), most = std::max(most, blocks);
  }
  l.Choose(fmt::format(
      "{}: two chunks of {} queries on each of {} ranks, which attend {} to {} blocks of {} by {}",
      node.label, rows / 2, ranks, least, most, kTile, kTile));
}

// The sum over ranks of the gradients of gathered keys and values, to this rank's columns.
void ScatterKeyGradients(Lowering& l, const Node& node, const View& all, const View& d_qkv) {
  const auto& attrs = Attrs<AttentionNodeAttrs>(node);
  const int64_t rows = d_qkv.layout.dims[0], columns = KeyColumns(attrs);
  const DType dtype = d_qkv.layout.dtype;
  const View own =
      l.storage().Temporary(node.label + ".d_own_keys", DenseLayout(dtype, {rows, columns}));
  ReduceScatterOp<View> scatter;
  scatter.axes = Axis::kContext;
  scatter.full = all;
  scatter.full.layout = DenseLayout(dtype, {all.layout.numel()});
  scatter.shard = own;
  scatter.shard.layout = DenseLayout(dtype, {rows * columns});
  l.Push(scatter, node, ":d_keys");
  CopyRowsOp<View> copy;
  copy.x = own;
  copy.out = KeyColumnsOf(d_qkv, attrs);
  l.Push(copy, node, ":d_own_keys");
}

void Lower(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  const auto& attrs = Attrs<AttentionNodeAttrs>(node);
  const auto heads = [&](const View& rows, int64_t first, int64_t count) {
    return HeadsOf(rows, l.graph().shape, attrs, first, count);
  };
  const View qkv = l.storage().Read(node.inputs[0]);
  AttentionOp<View> op;
  op.scale = AttentionScale(attrs);
  op.window = attrs.window;
  op.in_order = l.options().in_order;
  op.q = heads(qkv, 0, attrs.heads);
  if (l.graph().documents) op.documents = l.storage().Read(node.inputs[1]);
  op.rows = l.graph().context_rows();
  if (op.rows.split()) {
    ChooseSplit(l, node);
    const View keys = l.storage().Read(node.inputs.back());
    op.k = GatheredHeads(l, keys, attrs, 0);
    op.v = GatheredHeads(l, keys, attrs, attrs.kv_heads);
  } else {
    op.k = heads(qkv, attrs.heads, attrs.kv_heads);
    op.v = heads(qkv, attrs.heads + attrs.kv_heads, attrs.kv_heads);
  }
  op.out = heads(l.storage().Write(node.outputs[0]), 0, attrs.heads);
  op.lse = l.storage().Write(node.outputs[1]);
  l.Push(op, node);
}

void LowerGrad(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const auto& attrs = Attrs<AttentionNodeAttrs>(node);
  const auto heads = [&](const View& rows, int64_t first, int64_t count) {
    return HeadsOf(rows, l.graph().shape, attrs, first, count);
  };
  const View qkv = storage.Read(node.inputs[0]), d_qkv = storage.Write(node.outputs[0]);
  AttentionGradOp<View> op;
  op.deterministic = l.options().deterministic || l.options().backend == Backend::kCpu;
  op.scale = AttentionScale(attrs);
  op.window = attrs.window;
  op.rows = l.graph().context_rows();
  op.q = heads(qkv, 0, attrs.heads);
  op.out = heads(storage.Read(node.inputs[1]), 0, attrs.heads);
  op.lse = storage.Read(node.inputs[2]);
  op.d_out = heads(storage.Read(node.inputs[3]), 0, attrs.heads);
  if (l.graph().documents) op.documents = storage.Read(node.inputs[4]);
  op.d_q = heads(d_qkv, 0, attrs.heads);
  if (!op.rows.split()) {
    op.k = heads(qkv, attrs.heads, attrs.kv_heads);
    op.v = heads(qkv, attrs.heads + attrs.kv_heads, attrs.kv_heads);
    op.d_k = heads(d_qkv, attrs.heads, attrs.kv_heads);
    op.d_v = heads(d_qkv, attrs.heads + attrs.kv_heads, attrs.kv_heads);
    return l.Push(op, node);
  }
  const View keys = storage.Read(node.inputs.back()),
             d_keys = storage.Temporary(node.label + ".d_keys", keys.layout);
  op.k = GatheredHeads(l, keys, attrs, 0);
  op.v = GatheredHeads(l, keys, attrs, attrs.kv_heads);
  op.d_k = GatheredHeads(l, d_keys, attrs, 0);
  op.d_v = GatheredHeads(l, d_keys, attrs, attrs.kv_heads);
  l.Push(op, node);
  ScatterKeyGradients(l, node, d_keys, d_qkv);
}

// Two products over T pairs per row, of which half are causal (not T + 1 halves: model_flops.h); a
// window leaves window * (T - window / 2) of a sequence's T^2 / 2.
FlopsPerToken Flops(const SemanticGraph& graph, const Node& node) {
  const auto& attrs = Attrs<AttentionNodeAttrs>(node);
  const double columns = static_cast<double>(attrs.heads * attrs.head_dim),
               length = static_cast<double>(graph.shape.seq),
               window = static_cast<double>(attrs.window);
  const bool slides = attrs.window > 0 && attrs.window < graph.shape.seq;
  const double keys = slides ? 2 * window * (1 - window / (2 * length)) : length;
  return {2 * columns * keys, 4 * columns * keys};
}

}  // namespace

float AttentionScale(const HeadsAttrs& attrs) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(attrs.head_dim)));
}

View KeyColumnsOf(View rows, const HeadsAttrs& attrs) {
  rows.offset += attrs.heads * attrs.head_dim;
  rows.layout.dims[1] = KeyColumns(attrs);
  return rows;
}

const NodeDef kGatherKeysNode{.name = "gather_keys",
                              .recompute = RecomputeClass::kExchange,
                              .lower = LowerGatherKeys,
                              .received = ReceivedKeys};
const NodeDef kAttentionNode{.name = "attention",
                             .recompute = RecomputeClass::kDear,
                             .gradient = Gradient,
                             .lower = Lower,
                             .flops = Flops};
const NodeDef kAttentionGradNode{.name = "attention_grad", .lower = LowerGrad};

ValueId Attention(ForwardBuilder& b, ValueId qkv, const HeadsAttrs& heads, const std::string& label,
                  int64_t window) {
  b.CheckAllRows(qkv, 3, label);
  CheckHeads(heads, b.Columns(qkv, label), label);
  if (b.cache() != nullptr) return CachedAttention(b, qkv, heads, window, label);
  const int64_t batch = b.shape().batch, seq = b.shape().seq;
  const AxisSet split = b.value(qkv).placement.Cut(1);  // by heads
  const ValueId out =
      b.NewActivation(label, {batch * seq, heads.heads * heads.head_dim}, {{AxisSet(), split}, {}});
  const ValueId lse = b.NewStatistic(label + ".lse", {batch, heads.heads, seq},
                                     {{AxisSet(), split, AxisSet()}, {}});
  const AttentionNodeAttrs attrs{heads, window};
  std::vector<ValueId> inputs = b.WithDocuments({qkv});
  if (b.mesh().Size(Axis::kContext) > 1) {
    const int64_t rows = batch * seq * b.mesh().Size(Axis::kContext);
    const AxisSet left = b.value(qkv).placement.Cut(0) - Axis::kContext;
    inputs.push_back(
        b.NewActivation(label + ".keys", {rows, KeyColumns(heads)}, {{left, split}, {}}));
    b.Push(kGatherKeysNode, {qkv}, {inputs.back()}, attrs, label);
  }
  b.Push(kAttentionNode, std::move(inputs), {out, lse}, attrs, label);
  return out;
}

}  // namespace millrace
