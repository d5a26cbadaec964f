// The feed-forward branch: models/blocks/branch.h says how it is called.
//   mlp.up.weight       [width, d_model]; gated: mlp.gate_up.weight [2 width, d_model]
//   mlp.down.weight     [d_model, width]
// and their biases.
#pragma once

#include <vector>

#include "models/blocks/branch.h"

namespace millrace {

std::vector<ParamSpec> MlpParams(const MlpShape& shape, const BranchContext& context);
ValueId EmitMlp(ForwardBuilder& b, ValueId x, const MlpShape& shape, const BranchContext& context);

}  // namespace millrace
