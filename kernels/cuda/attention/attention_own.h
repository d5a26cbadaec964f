// Attention by kernels of our own: the same bits every time, whatever lies in other rows of the
// batch. kernels/cuda/attention/attention.h chooses between these and cuDNN. Gradients take B*H*T
// floats of scratch.
//
// Own     in f32: every shape that WhyUnsupported allows, any strides in dimensions 0 to 2, dtypes
//         in any mix.
// Packed  bf16 on tensor cores, for ops of which cuda::ChooseAttention says kPacked, or would with
//         documents: tiles of keys that no query of a tile sees, and of queries that see no key of
//         one, are passed over. Every operand's address must be a multiple of 16 bytes.
// Rows    On tensor cores of Hopper, where cuda::WhyNotRows is silent.
// In turn A gradient there, where cuda::WhyNotInTurn is silent; scratch is InTurnScratch.
//         Of both, addresses but for lse's are multiples of 16 bytes. Masked scores are 0 times
//         what they meet, so that is NaN of what is not finite: it goes from a row to rows of the
//         same 128, in a gradient of heads of the same group.
#pragma once

#include "kernels/ops/attention_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cuda {

void OwnAttention(const AttentionOp<TensorView>& op, Stream& stream);
void OwnAttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream);

void PackedAttention(const AttentionOp<TensorView>& op, Stream& stream);
void PackedAttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream);

// Whether this program has the two kernels below, whose products are warpgroups', for its GPU.
bool HasWarpgroups(Stream& stream);
// Error(kDevice): it has none.
void RowsAttention(const AttentionOp<TensorView>& op, Stream& stream);
// Error(kDevice): it has none.
void InTurnAttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cuda
