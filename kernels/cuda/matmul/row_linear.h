// kernels/ops/row_linear_ops.h: RowLinearOp, on CUDA.
#pragma once

#include "kernels/ops/row_linear_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaRowLinear(const RowLinearOp<TensorView>& op, Stream& stream);

}  // namespace millrace
