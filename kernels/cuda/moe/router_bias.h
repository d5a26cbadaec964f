// kernels/ops/router_ops.h: ExpertLoadOp and RouterBiasOp, on CUDA.
#pragma once

#include "kernels/ops/router_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaExpertLoad(const ExpertLoadOp<TensorView>& op, Stream& stream);
void CudaRouterBias(const RouterBiasOp<TensorView>& op, Stream& stream);

}  // namespace millrace
