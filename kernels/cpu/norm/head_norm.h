// kernels/ops/model_ops.h: HeadNormOp and HeadNormGradOp, on the CPU.
#pragma once

#include "kernels/ops/model_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void HeadNorm(const HeadNormOp<TensorView>& op, Stream& stream);
void HeadNormGrad(const HeadNormGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
