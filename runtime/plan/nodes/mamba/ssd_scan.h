// The scan of a Mamba-2 mixer.
//
// kSsdScanNode      in: x|B|C, dt f32 [R,H], a_log, d, documents?     out: y [R, H P]
// kSsdScanGradNode  in: x|B|C, dt, a_log, d, d_y, documents?   out: d_x|B|C, d_dt
//                   grad: a_log, d
//
// Attributes MambaAttrs.
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/nodes/mamba/mamba_rows.h"

namespace millrace {

extern const NodeDef kSsdScanNode, kSsdScanGradNode;

// a_log, d [H]: names of parameters.
ValueId SsdScan(ForwardBuilder& b, ValueId xbc, ValueId dt, const std::string& a_log,
                const std::string& d, const MambaAttrs& attrs, const std::string& label);

}  // namespace millrace
