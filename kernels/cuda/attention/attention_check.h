// What every attention kernel of this folder is given, checked: shapes that agree, f32 or bf16
// heads with last stride 1, lse f32. Violations throw Error(kInternal) naming the operand, what it
// is and what is expected.
#pragma once

#include <cstdint>

#include "kernels/ops/model_ops.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cuda {

struct AttentionDims {
  int64_t batch = 0, length = 0, heads = 0, kv_heads = 0, depth = 0;
  bool empty() const { return batch == 0 || length == 0 || heads == 0 || depth == 0; }
  int64_t group() const { return heads / kv_heads; }
};

AttentionDims CheckAttention(const AttentionOp<TensorView>& op);
AttentionDims CheckAttention(const AttentionGradOp<TensorView>& op);

}  // namespace millrace::cuda
