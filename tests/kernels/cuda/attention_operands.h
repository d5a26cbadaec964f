// Attention ops at the sizes of real models: q, k, v slices of one fused row, as a QKV projection
// writes them, and their gradients likewise.
#pragma once

#include "tests/kernels/cuda/matmul_operands.h"

namespace millrace::test {

struct AttentionSize {
  int64_t batch, length, heads, kv_heads, depth;
  DType dtype = DType::kBF16;
  bool deterministic = true;
};

struct AttentionOps {
  AttentionOp<TensorView> forward;
  AttentionGradOp<TensorView> grad;  // on the results of `forward`
};

// Uniform q, k, v and d_out; results and scratch are NaN.
AttentionOps MakeAttention(DeviceOperands& operands, const AttentionSize& size);

AttentionOp<Shape> ShapesOf(const AttentionOp<TensorView>& op);
AttentionGradOp<Shape> ShapesOf(const AttentionGradOp<TensorView>& op);

}  // namespace millrace::test
