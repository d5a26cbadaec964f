// What stands for the convolution and the scan of a Mamba-2 mixer where rows are new tokens of
// sequences that keep caches. States of the era, by slot:
//
//   conv/<l>   [slots, K, C]  the last inputs of convolution `l`, in the compute dtype
//   state/<l>  f32 [slots, H, P, N]  the state of scan `l` before the chunk that is open
//   rows/<l>   [slots, chunk, H P + 2 G N], steps/<l> f32 [slots, chunk, H]  of that chunk
//
// kMambaConvRowsNode  in: rows z|x|B|C|dt, weight, bias, dt_bias, infer/rows, conv
//                     out: x|B|C, dt f32 [R,H]
// kSsdScanRowsNode    in: x|B|C, dt, a_log, d, infer/rows, state, rows, steps   out: y
//
// Attributes MambaAttrs.
#pragma once

#include <string>

#include "runtime/plan/graph/forward_builder.h"
#include "runtime/plan/nodes/mamba/mamba_rows.h"

namespace millrace {

extern const NodeDef kMambaConvRowsNode, kSsdScanRowsNode;

// `inputs`, `outputs`: of the node for whole sequences (mamba_conv.h, ssd_scan.h).
void PushConvRows(ForwardBuilder& b, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                  const MambaAttrs& attrs, const std::string& label);
void PushScanRows(ForwardBuilder& b, std::vector<ValueId> inputs, ValueId output,
                  const MambaAttrs& attrs, const std::string& label);

}  // namespace millrace
