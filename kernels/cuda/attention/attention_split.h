// Attention of sequences split over a context group, by cuDNN: a call per chunk of queries and
// chunk of keys that it sees, 2n + 1 in all on every rank, each as large as the others but the two
// on the diagonal. Calls of one chunk of queries are put together by their log-sum-exp; of a
// gradient, each is given the lse of all keys, and d_q, d_k, d_v are added up in f32. Calls and
// sums have a fixed order.
#pragma once

#include "kernels/ops/attention_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cuda {

void SplitAttention(const AttentionOp<TensorView>& op, Stream& stream);
void SplitAttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cuda
