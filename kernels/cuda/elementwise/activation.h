// GELU and SwiGLU of the CUDA kernel table. At most 2^31 packs of eight outputs.
#pragma once

#include "kernels/ops/model_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaActivation(const ActivationOp<TensorView>& op, Stream& stream);
void CudaActivationGrad(const ActivationGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace
