// The norm of a Mamba-2 mixer: of its output, gated, by groups of columns.
//
// kGatedNormNode      in: y [R, H P], rows z|x|B|C|dt, weight        out: out [R, H P], rstd [R,G]
// kGatedNormGradNode  in: d_out, y, rows, weight, rstd   out: d_y, d_rows   grad: weight
//
// Attributes MambaAttrs. d_rows has zeros in the columns that are not z's.
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/nodes/mamba/mamba_rows.h"

namespace millrace {

extern const NodeDef kGatedNormNode, kGatedNormGradNode;

ValueId GatedNorm(ForwardBuilder& b, ValueId y, ValueId rows, const std::string& weight,
                  const MambaAttrs& attrs, const std::string& label);

}  // namespace millrace
