// kernels/ops/moe_ops.h: ExpertActivationOp and ExpertActivationGradOp, on the CPU.
#pragma once

#include "kernels/ops/moe_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void ExpertActivation(const ExpertActivationOp<TensorView>& op, Stream& stream);
void ExpertActivationGrad(const ExpertActivationGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
