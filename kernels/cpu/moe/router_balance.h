// kernels/ops/router_ops.h: RouterBalanceOp, ExpertLoadOp and RouterBiasOp, on the CPU.
#pragma once

#include "kernels/ops/router_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void RouterBalance(const RouterBalanceOp<TensorView>& op, Stream& stream);
void ExpertLoad(const ExpertLoadOp<TensorView>& op, Stream& stream);
void RouterBias(const RouterBiasOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
