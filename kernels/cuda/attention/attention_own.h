// Attention in f32 by kernels of our own: every shape that WhyUnsupported allows, any strides in
// dimensions 0 to 2, dtypes in any mix, the same bits every time.
// kernels/cuda/attention/attention.h chooses between this and cuDNN. The gradient takes
// B*H*T floats of scratch.
#pragma once

#include "kernels/ops/attention_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cuda {

void OwnAttention(const AttentionOp<TensorView>& op, Stream& stream);
void OwnAttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cuda
