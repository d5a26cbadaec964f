// kernels/ops/model_ops.h: ActivationOp and ActivationGradOp, on the CPU.
#pragma once

#include "kernels/ops/model_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void Activation(const ActivationOp<TensorView>& op, Stream& stream);
void ActivationGrad(const ActivationGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
