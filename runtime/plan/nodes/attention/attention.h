// Causal attention over fused qkv rows.
//
// kAttentionNode      in: qkv [R, (H+2Hkv)D], documents?, keys?    out: y [R, H*D], lse f32 [B,H,T]
// kAttentionGradNode  in: qkv, y, lse, d_y, documents?, keys?      out: d_qkv
// kGatherKeysNode     in: qkv                                      out: keys [n*R, 2Hkv*D]
//
// Where sequences are split over n ranks of context, and only there, keys and values are gathered,
// rank by rank. They have no gradient of their own: attention's sums theirs over the ranks.
//
// Attributes AttentionNodeAttrs.
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/nodes/attention/heads.h"

namespace millrace {

struct AttentionNodeAttrs : HeadsAttrs {
  int64_t window = 0;  // AttentionAttrs'
};

// Of scores: 1 / sqrt(D). Keys and values among the fused columns of rows [R, (H+2Hkv)D].
float AttentionScale(const HeadsAttrs& attrs);
View KeyColumnsOf(View rows, const HeadsAttrs& attrs);

extern const NodeDef kGatherKeysNode, kAttentionNode, kAttentionGradNode;

ValueId Attention(ForwardBuilder& b, ValueId qkv, const HeadsAttrs& heads, const std::string& label,
                  int64_t window = 0);

}  // namespace millrace
