// kernels/ops/moe_ops.h: RouteOp and RouteGradOp, on the CPU.
#pragma once

#include "kernels/ops/moe_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void Route(const RouteOp<TensorView>& op, Stream& stream);
void RouteGrad(const RouteGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
