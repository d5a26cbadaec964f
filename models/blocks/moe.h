// The mixture of experts: models/blocks/branch.h says how it is called.
//   moe.router.weight          [E, d_model]
//   moe.router.bias            [E] f32, with `bias`: chooses, has no gradient, evens the loads
//   moe.experts.up.weight      [E, width, d_model]; gated: gate_up [E, 2 width, d_model]
//   moe.experts.down.weight    [E, d_model, width]
//   moe.shared.up.weight       [shared_width, d_model], with shared_width; gated as above
//   moe.shared.down.weight     [d_model, shared_width]
//
// Ranks along the expert axis have E/n experts each, and exchange rows
// (nodes/moe/expert_exchange.h). Along the tensor axis each has the same experts and routes its own
// rows between blocks; the shared expert is split as an MLP is.
#pragma once

#include <vector>

#include "models/blocks/branch.h"

namespace millrace {

std::vector<ParamSpec> MoeParams(const MoeShape& shape, const BranchContext& context);
// Appends to `stats`, if given, what the shape's auxiliary loss looks at (nodes/moe/router.h).
ValueId EmitMoe(ForwardBuilder& b, ValueId x, const MoeShape& shape, const BranchContext& context,
                std::vector<ValueId>* stats);

// The auxiliary loss of all blocks with experts: null if there is none. Error(kConfig): blocks with
// different ones.
const MoeShape* BalancedShape(const ModelShape& shape);
inline constexpr const char* kBalanceLoss = "balance";

}  // namespace millrace
