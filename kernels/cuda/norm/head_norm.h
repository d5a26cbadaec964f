// QK-norm of the CUDA kernel table.
#pragma once

#include "kernels/ops/model_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaHeadNorm(const HeadNormOp<TensorView>& op, Stream& stream);
void CudaHeadNormGrad(const HeadNormGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace
