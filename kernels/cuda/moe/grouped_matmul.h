// kernels/ops/moe_ops.h: GroupedMatmulOp and GroupedWeightGradOp, on CUDA.
//
// bf16 operands go to tensor cores where rows of eight elements are aligned to 16 bytes: by wgmma
// on Hopper (a program built for sm_90a, on a device of 9.0), else by mma.sync. All other operands
// go to plain multiply-adds in f32. Operands of one dtype are needed.
#pragma once

#include "kernels/ops/moe_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaGroupedMatmul(const GroupedMatmulOp<TensorView>& op, Stream& stream);
void CudaGroupedWeightGrad(const GroupedWeightGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace
