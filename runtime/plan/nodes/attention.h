// Causal attention over fused qkv rows.
//
// kAttentionNode      in: qkv [R, (H+2Hkv)D]    out: y [R, H*D], lse f32 [B,H,T]
// kAttentionGradNode  in: qkv, y, lse, d_y      out: d_qkv
//
// Attributes HeadsAttrs.
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/nodes/heads.h"

namespace millrace {

extern const NodeDef kAttentionNode, kAttentionGradNode;

ValueId Attention(ForwardBuilder& b, ValueId qkv, const HeadsAttrs& heads,
                  const std::string& label);

}  // namespace millrace
