// Rows on their way to the experts and back.
//
// kDispatchNode  in: x [R,C], weights [R,K]?, pairs, offsets, slots
//                out: rows [S,C] in the order of the experts, slot_weights [S]?
// kCombineNode   in: y [S,C], slot_weights [S]?, pairs, offsets, slots
//                out: sum [R,C] of each token's K rows, weights [R,K]?
//
// Slots are this rank's own, or rows of the pieces that it sends to other ranks
// (expert_exchange.h): then there are no offsets, and slots without a row are zeros.
//
// Each is the gradient of the other: a token's row is copied to K slots, and the sum over these
// slots is the gradient of that. Dispatched rows are not kept for the backward but dispatched
// again.
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/nodes/moe/router.h"

namespace millrace {

extern const NodeDef kDispatchNode, kCombineNode;

struct Dispatched {
  ValueId rows, weights;  // [S,C], f32 [S]
};

Dispatched Dispatch(ForwardBuilder& b, ValueId x, const Routing& routing, const std::string& label);
// y: rows [S,C] in the order of the experts.
ValueId Combine(ForwardBuilder& b, ValueId y, const Routing& routing, const std::string& label);

// Of any node that moves rows and, if there are, their weights, with inputs and outputs as above.
void GradientOfMovedRows(Differentiator& d, const Node& n, const NodeDef& inverse);
void LowerDispatch(Lowering& l, const Step& step);

}  // namespace millrace
