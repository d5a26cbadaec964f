// RMSNorm of each query and key head of fused rows, ahead of the rotation (QK-norm).
//
// kHeadNormNode      in: qkv, q_weight, k_weight             out: qkv, rstd f32 [R, H + Hkv]
// kHeadNormGradNode  in: d_y, qkv, q_weight, k_weight, rstd  out: d_qkv  grad: q_weight, k_weight
//
// Attributes HeadNormNodeAttrs. Ranks along tensor have heads of their own and the weights whole:
// each has the gradient of its own heads, and what nothing splits is summed over them.
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/nodes/attention/heads.h"

namespace millrace {

struct HeadNormNodeAttrs : HeadsAttrs {
  float eps = 1e-6f;
};

extern const NodeDef kHeadNormNode, kHeadNormGradNode;

// q_weight, k_weight: parameters [D].
ValueId HeadNorm(ForwardBuilder& b, ValueId qkv, const std::string& q_weight,
                 const std::string& k_weight, const HeadsAttrs& heads, float eps,
                 const std::string& label);

}  // namespace millrace
