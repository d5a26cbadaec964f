// Causal attention of the CUDA kernel table: cuDNN or kernels of our own, as
// cuda::ChooseAttention (kernels/ops/attention_choice.h) says from shapes, strides and dtypes.
#pragma once

#include "kernels/ops/attention_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaAttention(const AttentionOp<TensorView>& op, Stream& stream);
void CudaAttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace
