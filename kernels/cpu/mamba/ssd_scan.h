// kernels/ops/mamba_ops.h: SsdScanOp and SsdScanGradOp, on the CPU.
#pragma once

#include "kernels/ops/mamba_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void SsdScan(const SsdScanOp<TensorView>& op, Stream& stream);
void SsdScanGrad(const SsdScanGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
