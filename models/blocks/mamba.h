// A Mamba-2 mixer (arXiv 2405.21060): models/blocks/branch.h says how it is called.
//   mamba.in_proj.weight   [2 inner + 2 groups state + heads, d_model]   rows z, x, B, C, dt
//   mamba.conv.weight, mamba.conv.bias   [inner + 2 groups state, conv], [inner + 2 groups state]
//   mamba.dt_bias, mamba.a_log, mamba.d   [heads], f32, without decay
//   mamba.norm.weight      [inner]
//   mamba.out_proj.weight  [d_model, inner]
// Ranks along tensor have heads / t of them with their groups; along context there is one.
#pragma once

#include <vector>

#include "models/blocks/branch.h"

namespace millrace {

std::vector<ParamSpec> MambaParams(const MambaShape& shape, const BranchContext& context);
ValueId EmitMamba(ForwardBuilder& b, ValueId x, const MambaShape& shape,
                  const BranchContext& context);

}  // namespace millrace
