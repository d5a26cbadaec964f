// What stands for embedding, rotation and attention where rows are new tokens of sequences that
// keep caches (CacheShape), and the states that say which, written by the host before a plan runs.
//
//   infer/rows      i32 [3, rows]   of each row token, position, slot
//   infer/pages     i32 [slots, P]  the pages of the sequence in each slot
//   infer/sampling  i64 [slots, kSampleWords]  of each row that the plan gives logits of, in their
//                   order, how a token is drawn from them, or which one is given
//   cache/<l>       [pages, page_tokens, 2 Hkv D] of attention `l`, in the compute dtype; of the
//                   era
//
// kEmbedRowsNode        in: rows, table, positions?   out: x
// kRopeRowsNode         in: qkv, table, rows          out: qkv with q and k heads rotated
//                       (HeadsAttrs)
// kCachedAttentionNode  in: qkv, rows, pages, cache   out: y; the rows are cached first
//                       (AttentionNodeAttrs)
#pragma once

#include <string>

#include "kernels/ops/model_ops.h"
#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/nodes/attention/heads.h"

namespace millrace {

class Lowering;

inline constexpr const char* kPagesState = "infer/pages";
inline constexpr const char* kSamplingState = "infer/sampling";

// For lowerings. Of infer/rows the part of this graph's rows: i32 [R].
enum class OfRow { kToken, kPosition, kSlot };
View StateOfRows(Lowering& l, ValueId state, OfRow which);

// For the lowering of a product with `weight` in a graph with caches: its rows, the last `rows` of
// the graph's, have the bits of the training forward's first sequence. No change for a graph that
// need not have them. The node's operands say nothing of this: it is so for any.
void LikeTraining(Lowering& l, int64_t rows, ValueId weight, MatmulOp<View>* product);

extern const NodeDef kEmbedRowsNode, kRopeRowsNode, kCachedAttentionNode;

ValueId SamplingState(ForwardBuilder& b);
ValueId EmbedRows(ForwardBuilder& b, ValueId table, ValueId positions, const std::string& label);
ValueId RopeRows(ForwardBuilder& b, ValueId qkv, ValueId table, const HeadsAttrs& heads,
                 const std::string& label);
ValueId CachedAttention(ForwardBuilder& b, ValueId qkv, const HeadsAttrs& heads, int64_t window,
                        const std::string& label);

}  // namespace millrace
