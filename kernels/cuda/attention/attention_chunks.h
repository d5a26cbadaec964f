// The border between attention_split.cc and attention_chunks.cu: what puts the calls of a split
// attention together. All heads are bf16, or all f16, [B,S,H,D], D and strides multiples of four
// elements and addresses of eight bytes; sums are dense f32 [B,S,H,D], lse dense f32 [B,H,S].
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_launch.h"

namespace millrace::cuda {

struct ChunkSizes {
  int64_t batch = 0;
  int rows = 0, heads = 0, depth = 0;
};

// The first call of several, or the last, which leaves the result in `out`.
struct ChunkTurn {
  bool first = false, last = false;
};

// sum (=|+=) part; of the last: out = that, rounded once. part.data null: zero.
struct ChunkSumArgs {
  ChunkSizes sizes;
  AttentionHeads part, out;
  float* sum = nullptr;
  ChunkTurn turn;
};
void LaunchChunkSum(const ChunkSumArgs& args, const Launch& launch);

// Two softmaxes over separate keys as one: with lse = log(e^lse_before + e^lse_part),
// sum = sum e^(lse_before - lse) + part e^(lse_part - lse); of the first: part itself.
struct ChunkMergeArgs {
  ChunkSizes sizes;
  AttentionHeads part, out;
  float* sum = nullptr;
  const float *lse_part = nullptr, *lse_before = nullptr;
  float* lse = nullptr;  // neither of the two
  ChunkTurn turn;
};
void LaunchChunkMerge(const ChunkMergeArgs& args, const Launch& launch);

}  // namespace millrace::cuda
