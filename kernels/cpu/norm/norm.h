// kernels/ops/model_ops.h: NormOp, NormGradOp and NormSumsOp, on the CPU.
#pragma once

#include "kernels/ops/model_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void Norm(const NormOp<TensorView>& op, Stream& stream);
void NormGrad(const NormGradOp<TensorView>& op, Stream& stream);
void NormSums(const NormSumsOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
