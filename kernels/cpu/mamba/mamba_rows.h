// kernels/ops/cache_ops.h: the convolution and the scan of a Mamba-2 mixer over rows of sequences
// that keep their states, on the CPU.
#pragma once

#include "kernels/ops/cache_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void MambaConvRows(const MambaConvRowsOp<TensorView>& op, Stream& stream);
void SsdScanRows(const SsdScanRowsOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
