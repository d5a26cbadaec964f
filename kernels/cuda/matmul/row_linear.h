// kernels/ops/row_linear_ops.h: RowLinearOp, on CUDA.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/cuda/matmul/one_row.h"
#include "kernels/ops/row_linear_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaRowLinear(const RowLinearOp<TensorView>& op, Stream& stream);
// KernelTable::row_linears: by row_chain.h's kernel.
size_t CudaRowLinears(std::span<const RowLinearOp<TensorView>* const> ops,
                      std::span<const RowLinearOp<TensorView>* const> next, Stream& stream);

namespace cuda {

// What the kernels take, checked.
OneRowArgs OneRowArgsOf(const RowLinearOp<TensorView>& op);

}  // namespace cuda

}  // namespace millrace
