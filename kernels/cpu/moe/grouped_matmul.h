// kernels/ops/moe_ops.h: GroupedMatmulOp and GroupedWeightGradOp, on the CPU: a MatmulOp for each
// expert that has slots.
#pragma once

#include "kernels/ops/moe_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void GroupedMatmul(const GroupedMatmulOp<TensorView>& op, Stream& stream);
void GroupedWeightGrad(const GroupedWeightGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
