// Attention through cuDNN, where cuda::ChooseAttention has no word against it. The fused QKV row is
// read, and its gradient written, in place through strides. An op may be several calls
// (cuda::SlicesOf).
//
// Capture  The first call of a shape builds its plan: before a capture, at any addresses.
#pragma once

#include <cstdint>

#include "kernels/ops/attention_ops.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cuda {

void CudnnAttention(const AttentionOp<TensorView>& op, Stream& stream);
// The same bits every time when op.deterministic.
void CudnnAttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream);

// One call of a split op: every query sees every key unless `causal`. The op itself is not split.
enum class ChunkMask { kCausal, kNone };
void CudnnChunk(const AttentionOp<TensorView>& op, ChunkMask mask, Stream& stream);
void CudnnChunk(const AttentionGradOp<TensorView>& op, ChunkMask mask, Stream& stream);

// The most scratch that a call of this op asks for; builds the plans. Addresses do not matter.
int64_t CudnnBytes(const AttentionOp<TensorView>& op, CudaDevice& device);
int64_t CudnnBytes(const AttentionGradOp<TensorView>& op, CudaDevice& device);

}  // namespace millrace::cuda
