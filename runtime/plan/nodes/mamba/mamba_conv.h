// What a Mamba-2 mixer does ahead of its scan: the convolution of x, B and C along the sequence,
// with SiLU, and the step sizes.
//
// kMambaConvNode      in: rows z|x|B|C|dt, weight, bias, dt_bias, documents?
//                     out: x|B|C, dt f32 [R,H]
// kMambaConvGradNode  in: rows, weight, bias, dt_bias, d_x|B|C, d_dt, d_rows of z's reader,
//                     documents?   out: d_rows   grad: weight, bias, dt_bias
//
// Attributes MambaAttrs. z is the gate's: its gradient is there before this node's rule runs, in
// rows of zeros, and the other columns are written over them.
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/nodes/mamba/mamba_rows.h"

namespace millrace {

extern const NodeDef kMambaConvNode, kMambaConvGradNode;

struct MambaConvOutputs {
  ValueId xbc, dt;
};
// weight [x|B|C columns, taps], bias [x|B|C columns], dt_bias [H]: names of parameters.
MambaConvOutputs MambaConv(ForwardBuilder& b, ValueId rows, const std::string& weight,
                           const std::string& bias, const std::string& dt_bias,
                           const MambaAttrs& attrs, const std::string& label);

}  // namespace millrace
