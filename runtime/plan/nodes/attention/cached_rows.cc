#include "runtime/plan/nodes/attention/cached_rows.h"

#include "kernels/ops/sample_ops.h"
#include "runtime/plan/lower/lowering.h"
#include "runtime/plan/nodes/attention/attention.h"

namespace millrace {
namespace {

ValueId RowsState(ForwardBuilder& b) { return b.cache()->rows_state; }
ValueId PagesState(ForwardBuilder& b) {
  const CacheShape& cache = *b.cache();
  return b.State(kPagesState, ValueRole::kHostState, DType::kI32,
                 {cache.slots, cache.pages_of_sequence});
}

// Heads [first, first + heads) of fused rows, as [R, heads, D].
View HeadsOfRows(View rows, const HeadsAttrs& attrs, int64_t first, int64_t heads) {
  const int64_t row = rows.layout.dims[1];
  rows.offset += first * attrs.head_dim;
  rows.layout.rank = 3;
  rows.layout.dims = {rows.layout.dims[0], heads, attrs.head_dim};
  rows.layout.strides = {row, attrs.head_dim, 1};
  return rows;
}

void LowerEmbedding(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  EmbedRowsOp<View> op;
  op.tokens = StateOfRows(l, node.inputs[0], OfRow::kToken);
  op.at = StateOfRows(l, node.inputs[0], OfRow::kPosition);
  op.table = l.storage().Read(node.inputs[1]);
  op.positions = l.storage().Read(node.inputs[2]);
  op.out = l.storage().Write(node.outputs[0]);
  l.Push(op, node);
}

void LowerRotation(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  ValueStorage& storage = l.storage();
  const auto& attrs = Attrs<HeadsAttrs>(node);
  const ValueId in = node.inputs[0], out = node.outputs[0];
  MR_CHECK(storage.CanReplace(in, out), "{}: rotates in place, but {} is read again later",
           node.label, l.graph().value(in).name);
  RopeRowsOp<View> op;
  op.table = storage.Read(node.inputs[1]);
  op.at = StateOfRows(l, node.inputs[2], OfRow::kPosition);
  op.x = HeadsOfRows(storage.WriteOver(out, in), attrs, 0, attrs.heads + attrs.kv_heads);
  l.Push(op, node);
}

void LowerAttention(Lowering& l, const Step& step) {
  const Node& node = *step.node;
  const auto& attrs = Attrs<AttentionNodeAttrs>(node);
  const View qkv = l.storage().Read(node.inputs[0]);
  CachedAttentionOp<View> op;
  op.scale = AttentionScale(attrs);
  op.window = attrs.window;
  op.kv_heads = attrs.kv_heads;
  op.length = l.graph().cache->length;
  op.rows_from = l.graph().cache->rows_from;
  op.in_order = l.options().in_order;
  op.q = HeadsOfRows(qkv, attrs, 0, attrs.heads);
  op.x = KeyColumnsOf(qkv, attrs);
  op.at = StateOfRows(l, node.inputs[1], OfRow::kPosition);
  op.slots = StateOfRows(l, node.inputs[1], OfRow::kSlot);
  op.pages = l.storage().Read(node.inputs[2]);
  op.cache = l.storage().Read(node.inputs[3]);
  op.out = HeadsOfRows(l.storage().Write(node.outputs[0]), attrs, 0, attrs.heads);
  l.Push(op, node);
}

}  // namespace

View StateOfRows(Lowering& l, ValueId state, OfRow which) {
  View rows = l.storage().Read(state);
  rows.offset = static_cast<int64_t>(which) * rows.layout.dims[1];
  rows.layout = DenseLayout(DType::kI32, {l.graph().shape.rows()});
  return rows;
}

// A weight that ranks split, or of which each takes rows of its own, multiplies the rows of all.
void LikeTraining(Lowering& l, int64_t rows, ValueId weight, MatmulOp<View>* product) {
  if (!l.graph().cache || l.graph().cache->like_rows == 0) return;
  const bool whole = l.graph().value(weight).placement.whole() &&
                     product->b.layout.dims[1] == l.graph().value(weight).dims[0];
  product->like_rows = whole ? l.graph().cache->like_own_rows : l.graph().cache->like_rows;
  View at = StateOfRows(l, l.graph().cache->rows_state, OfRow::kPosition);
  at.offset += at.layout.dims[0] - rows;
  at.layout.dims[0] = rows;
  product->places = at;
}

const NodeDef kEmbedRowsNode{.name = "embed_rows", .lower = LowerEmbedding};
const NodeDef kRopeRowsNode{.name = "rope_rows", .lower = LowerRotation};
const NodeDef kCachedAttentionNode{.name = "cached_attention", .lower = LowerAttention};

ValueId SamplingState(ForwardBuilder& b) {
  return b.State(kSamplingState, ValueRole::kHostState, DType::kI64,
                 {b.cache()->slots, kSampleWords});
}

ValueId EmbedRows(ForwardBuilder& b, ValueId table, ValueId positions, const std::string& label) {
  const ValueId out = b.NewActivation(label, {b.shape().rows(), b.value(table).dims.back()});
  b.Push(kEmbedRowsNode, {RowsState(b), table, positions}, {out}, {}, label);
  return out;
}

ValueId RopeRows(ForwardBuilder& b, ValueId qkv, ValueId table, const HeadsAttrs& heads,
                 const std::string& label) {
  const ValueId out = b.NewActivation(label, {b.shape().rows(), b.Columns(qkv, label)},
                                      b.value(qkv).placement, b.value(qkv).parts);
  b.Push(kRopeRowsNode, {qkv, table, RowsState(b)}, {out}, heads, label);
  return out;
}

ValueId CachedAttention(ForwardBuilder& b, ValueId qkv, const HeadsAttrs& heads, int64_t window,
                        const std::string& label) {
  const CacheShape& shape = *b.cache();
  const ValueId cache =
      b.State("cache/" + label, ValueRole::kCache, b.compute(),
              {shape.pages, shape.page_tokens, 2 * heads.kv_heads * heads.head_dim});
  const ValueId out = b.NewActivation(label, {b.shape().rows(), heads.heads * heads.head_dim},
                                      {{AxisSet(), b.value(qkv).placement.Cut(1)}, {}});
  b.Push(kCachedAttentionNode, {qkv, RowsState(b), PagesState(b), cache}, {out},
         AttentionNodeAttrs{heads, window}, label);
  return out;
}

}  // namespace millrace
