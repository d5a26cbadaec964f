// kernels/ops/attention_ops.h: AttentionOp and AttentionGradOp, on the CPU.
//
// Per batch row and head, query rows go in blocks; each block is two GEMMs forward and five
// backward against the keys up to the block's last row. f32 operands are read in place through
// their strides, bf16 is converted into scratch one head at a time.
#pragma once

#include "kernels/ops/attention_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void Attention(const AttentionOp<TensorView>& op, Stream& stream);
void AttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
