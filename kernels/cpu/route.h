// kernels/ops/moe_ops.h: RouteOp and RouteGradOp, RouterStatsOp and RouterBalanceOp, on the CPU.
#pragma once

#include "kernels/ops/moe_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void Route(const RouteOp<TensorView>& op, Stream& stream);
void RouteGrad(const RouteGradOp<TensorView>& op, Stream& stream);
void RouterStats(const RouterStatsOp<TensorView>& op, Stream& stream);
void RouterBalance(const RouterBalanceOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
