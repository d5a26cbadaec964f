// kernels/ops/model_ops.h: MatmulOp and BatchedMatmulOp, on the CPU.
//
// The f32 product of a tile is complete before anything else happens to it: bias, activation,
// rounding, addition to the destination. Tiles depend on shapes and operand dtypes only, so
// overwriting and accumulating, f32 and bf16 destinations see the same product.
#pragma once

#include "kernels/ops/model_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void Matmul(const MatmulOp<TensorView>& op, Stream& stream);
void BatchedMatmul(const BatchedMatmulOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
