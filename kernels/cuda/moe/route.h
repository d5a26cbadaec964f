// kernels/ops/router_ops.h: RouteOp and RouteGradOp, RouterStatsOp and RouterBalanceOp, on CUDA.
#pragma once

#include "kernels/ops/router_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaRoute(const RouteOp<TensorView>& op, Stream& stream);
void CudaRouteGrad(const RouteGradOp<TensorView>& op, Stream& stream);
void CudaRouterStats(const RouterStatsOp<TensorView>& op, Stream& stream);
void CudaRouterBalance(const RouterBalanceOp<TensorView>& op, Stream& stream);

}  // namespace millrace
