// Rotary position embedding, in place, and its table.
//
// kRopeTableNode  in: -            out: table f32 [T, D/2, 2], a constant   (RopeTableAttrs)
// kRopeNode       in: qkv, table, documents?     out: qkv with q and k heads rotated (HeadsAttrs)
// kRopeGradNode   in: d_qkv, table, documents?   out: d_qkv rotated back             (HeadsAttrs)
#pragma once

#include <string>

#include "kernels/ops/attention_ops.h"
#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/nodes/attention/heads.h"

namespace millrace {

extern const NodeDef kRopeTableNode, kRopeNode, kRopeGradNode;

ValueId RopeTable(ForwardBuilder& b, int64_t head_dim, double theta, const RopeScaling& scaling);
ValueId Rope(ForwardBuilder& b, ValueId qkv, ValueId table, const HeadsAttrs& heads,
             const std::string& label);

}  // namespace millrace
