// kernels/ops/row_linear_ops.h: RowLinearOp, on the CPU.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/ops/row_linear_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

// Written for clarity, one op after the other: plans for the CPU have those ops themselves.
void RowLinear(const RowLinearOp<TensorView>& op, Stream& stream);
// KernelTable::row_linears: takes none.
size_t RowLinears(std::span<const RowLinearOp<TensorView>* const> ops,
                  std::span<const RowLinearOp<TensorView>* const> next, Stream& stream);

}  // namespace millrace::cpu
