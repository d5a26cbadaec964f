// kernels/ops/router_ops.h: RouteOp and RouteGradOp, and RouterStatsOp, on the CPU.
#pragma once

#include "kernels/ops/router_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void Route(const RouteOp<TensorView>& op, Stream& stream);
void RouteGrad(const RouteGradOp<TensorView>& op, Stream& stream);
void RouterStats(const RouterStatsOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
