// The border between attention_own.cc, which checks, and attention_own.cu and attention_packed*.cu,
// which run.
// Launches enqueue on the launch's stream; the caller has made sure that there is something
// to do: no dimension is 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/rows.h"
#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

// A [B,rows,H,D] view, f32 unless it says another dtype, last stride 1. Strides in elements.
struct AttentionHeads {
  std::byte* data = nullptr;
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  bool bf16 = false;
  // Four elements at a time: D, strides and the address are multiples of four elements.
  bool wide = false;
  bool f16 = false;
};

// f32 [B,H,rows]; nullptr: absent.
struct AttentionLse {
  float* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
};

// Queries are `chunks` runs of `chunk` rows of a [B, chunks*chunk, ...] operand; the first row of
// run i is position start[i]. Keys are positions [0, length), where PlaceOf (context_rows.h) says.
struct AttentionSizes {
  int64_t batch = 0;
  int length = 0, heads = 0, kv_heads = 0, depth = 0;
  int window = 0;  // AttentionAttrs'; not above 2^30
  int ranks = 1, chunks = 1, chunk = 0;
  int start[2] = {0, 0};
  // i32 [B, length]: the first position of each position's document; nullptr: they are one. Then
  // there is one chunk.
  const int32_t* documents = nullptr;
};

struct AttentionArgs {
  AttentionSizes sizes;
  float scale = 1;
  AttentionHeads q, k, v, out;
  AttentionLse lse;
};
// `mix`: of all operands.
void LaunchAttention(const AttentionArgs& args, Elements mix, const Launch& launch);

struct AttentionGradArgs {
  AttentionSizes sizes;
  float scale = 1;
  AttentionHeads q, k, v, out, d_out, d_q, d_k, d_v;
  AttentionLse lse;
  float* delta = nullptr;  // scratch [B,H,rows]
};
void LaunchAttentionGrad(const AttentionGradArgs& args, Elements mix, const Launch& launch);

// Those of attention_packed.cu and attention_packed_grad.cu: every operand bf16, wide, its rows
// multiples of 16 bytes apart, one chunk of one rank, D a multiple of 8 up to 128, scale above 0.
void LaunchPackedAttention(const AttentionArgs& args, const Launch& launch);
void LaunchPackedAttentionGrad(const AttentionGradArgs& args, const Launch& launch);

// Blocks of a launch are one-dimensional: (tiles of 64 rows) * H * B of them, at most 2^31 - 1. A
// tile of queries is within a chunk.
inline constexpr int kAttentionTile = 64;
inline constexpr int kMaxAttentionDepth = 256;

}  // namespace millrace::cuda
