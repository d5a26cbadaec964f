// The activation of the experts' rows, times the weights that the router gave them.
//
// kExpertActivationNode      in: x [S,F] (gated [S,2F]), weights [S], offsets   out: y [S,F]
// kReceivedActivationNode    the same of rows with room for more than come (Routing::expected)
// kExpertActivationGradNode  in: x, weights, d_y, offsets                out: d_x, d_weights [S]
//
// Attributes ExpertActivationAttrs.
#pragma once

#include <string>

#include "kernels/ops/moe_ops.h"
#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/nodes/moe/router.h"

namespace millrace {

extern const NodeDef kExpertActivationNode, kReceivedActivationNode, kExpertActivationGradNode;

ValueId ExpertActivation(ForwardBuilder& b, ValueId x, ValueId weights, const Routing& routing,
                         ActivationKind kind, const std::string& label);

}  // namespace millrace
