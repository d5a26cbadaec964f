// Products of the experts' rows with a matrix of each expert.
//
// kGroupedLinearNode            in: x [S,K], weight [E,N,K], offsets   out: y [S,N]
// kReceivedLinearNode           the same of rows with room for more than come (Routing::expected):
//                               never kept for the backward
// kGroupedLinearGradInputNode   in: d_y, weight, offsets               out: d_x
// kGroupedLinearGradWeightNode  in: d_y, x, offsets                    grad: weight
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/nodes/moe/router.h"

namespace millrace {

extern const NodeDef kGroupedLinearNode, kReceivedLinearNode, kGroupedLinearGradInputNode,
    kGroupedLinearGradWeightNode;

// x: rows in the order of the experts. FLOPs are those of top_k experts per token.
ValueId GroupedLinear(ForwardBuilder& b, ValueId x, const std::string& weight,
                      const Routing& routing, const std::string& label);

}  // namespace millrace
