// A Mamba-2 mixer's ops of the CUDA kernel table. Rows of operands are of neighbours.
#pragma once

#include "kernels/ops/mamba_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaMambaConv(const MambaConvOp<TensorView>& op, Stream& stream);
void CudaMambaConvGrad(const MambaConvGradOp<TensorView>& op, Stream& stream);
void CudaSsdScan(const SsdScanOp<TensorView>& op, Stream& stream);
void CudaSsdScanGrad(const SsdScanGradOp<TensorView>& op, Stream& stream);
void CudaGatedNorm(const GatedNormOp<TensorView>& op, Stream& stream);
void CudaGatedNormGrad(const GatedNormGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace
