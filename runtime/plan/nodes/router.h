// Which experts compute a token, with which weights, and where its rows lie among theirs.
//
// kRouterNode      in: logits f32 [R,E], bias f32 [E]?   out: ids i32 [R,K], weights f32 [R,K]
// kRouterGradNode  in: logits, ids, d_weights            out: d_logits [R,E] of the compute dtype
// kSlotsNode       in: ids   out: offsets i32 [E+1], slots i32 [R,K], pairs i32 [R*K]
//
// kernels/ops/moe_ops.h says what they compute. All their outputs are kept for the backward; logits
// are not, where a block is computed again.
#pragma once

#include <string>

#include "kernels/ops/moe_ops.h"
#include "runtime/plan/graph/forward_builder.h"

namespace millrace {

extern const NodeDef kRouterNode, kRouterGradNode, kSlotsNode;

struct Routing {
  ValueId ids, weights;           // [R,K]
  ValueId offsets, slots, pairs;  // [E+1], [R,K], [S] with S = R*K
  int64_t top_k = 0;
};

// logits = x weight^T in f32, weight [E,C]; `bias` names a parameter [E] in f32, "" for none. R are
// the rows that this rank has of x, whole; its experts are all E.
Routing Route(ForwardBuilder& b, ValueId x, const std::string& weight, const std::string& bias,
              const RouteAttrs& attrs, int64_t top_k, const std::string& label);

}  // namespace millrace
