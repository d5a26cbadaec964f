// What every attention kernel of this folder is given, checked: shapes that agree, f32, bf16 or f16
// heads with last stride 1, lse f32. Violations throw Error(kInternal) naming the operand, what it
// is and what is expected.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/ops/attention_ops.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cuda {

struct AttentionDims {
  int64_t batch = 0, rows = 0, heads = 0, kv_heads = 0, depth = 0;  // rows: T/n, this rank's
  int64_t ranks = 1;                                                // n, of ContextRows
  std::array<int64_t, 2> starts{};                                  // of its chunks
  bool empty() const { return batch == 0 || rows == 0 || heads == 0 || depth == 0; }
  bool split() const { return ranks > 1; }
  int64_t group() const { return heads / kv_heads; }
  int64_t length() const { return ranks * rows; }
  int64_t chunks() const { return split() ? 2 : 1; }
  int64_t chunk() const { return rows / chunks(); }
};

AttentionDims CheckAttention(const AttentionOp<TensorView>& op);
AttentionDims CheckAttention(const AttentionGradOp<TensorView>& op);

}  // namespace millrace::cuda
