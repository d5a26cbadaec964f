// kernels/ops/moe_ops.h: ExpertActivationOp and ExpertActivationGradOp, on CUDA.
#pragma once

#include "kernels/ops/moe_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaExpertActivation(const ExpertActivationOp<TensorView>& op, Stream& stream);
void CudaExpertActivationGrad(const ExpertActivationGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace
