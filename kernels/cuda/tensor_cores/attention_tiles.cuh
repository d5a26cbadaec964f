// What attention does on tensor cores: the products of a warp's queries and a tile of keys, softmax
// over the keys so far, and the products of its weights and the tile's values. Gradients are such
// products, too, of other operands. Tiles are bf16 in shared memory, of rows of kDepth; fragments
// as in mma.cuh.
//
// Source  T. Dao, FlashAttention-2, 2023: softmax relative to the largest score so far.
#pragma once

#include <cmath>

#include "kernels/cuda/tensor_cores/exp2.cuh"
#include "kernels/cuda/tensor_cores/mma.cuh"

namespace millrace::cuda {

inline constexpr int kKeys = 64;  // of a tile, where nothing else is said

// Where piece `piece` (16 bytes) of row `row` of a tile lies: permuted by row % 8, so that eight
// rows' pieces of the same columns lie in different banks. Further pieces are at ^ (16 more), of
// rows eight further + what rows take: tiles begin at multiples of a row.
template <int kDepth>
__device__ __forceinline__ uint32_t PieceAt(uint32_t tile, int row, int piece) {
  return tile + static_cast<uint32_t>(row * kDepth * 2 + (piece ^ (row % 8)) * 16);
}

__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int WarpOfBlock() { return static_cast<int>(threadIdx.x) / kWarp; }

// A warp's 16 kTiles queries as operands of products: kept in registers, or read each time.
template <int kDepth, int kTiles, bool kHeld = kTiles* kDepth <= 128>
class Queries {
 public:
  // From row `first` of the tile on.
  __device__ explicit Queries(uint32_t tile, int first = WarpOfBlock() * kTiles * 16)
      : at_(PieceAt<kDepth>(tile, first + Lane() % 16, Lane() / 16)) {}

  // Once they have been copied.
  __device__ void Hold() {
    if constexpr (kHeld)
#pragma unroll
      for (int k = 0; k < kSteps; ++k) Read(held_[k], k);
  }
  __device__ void Get(uint32_t (&x)[kTiles][4], int k) const {
    if constexpr (kHeld) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) x[t][i] = held_[k][t][i];
    } else {
      Read(x, k);
    }
  }

 private:
  static constexpr int kSteps = kDepth / 16;

  __device__ void Read(uint32_t (&x)[kTiles][4], int k) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      LoadMatrices(
          x[t], (at_ ^ static_cast<uint32_t>(k * 32)) + static_cast<uint32_t>(t * 16 * kDepth * 2));
  }

  uint32_t at_;
  uint32_t held_[kHeld ? kSteps : 1][kTiles][4];
};

template <int kTiles, int kCount = kKeys>
using Scores = float[kTiles][kCount / 8][4];
template <int kDepth, int kTiles>
using Sums = float[kTiles][kDepth / 8][4];

// scores += queries keys^T, of 8 kEights keys.
template <int kDepth, int kTiles, int kEights, bool kHeld>
__device__ __forceinline__ void MultiplyKeys(float (&scores)[kTiles][kEights][4],
                                             const Queries<kDepth, kTiles, kHeld>& queries,
                                             uint32_t keys) {
  const uint32_t at = PieceAt<kDepth>(keys, Lane() % 8 + Lane() / 16 * 8, Lane() / 8 % 2);
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    uint32_t x[kTiles][4];
    queries.Get(x, k);
#pragma unroll
    for (int n = 0; n < kEights / 2; ++n) {
      uint32_t b[4];
      LoadMatrices(
          b, (at ^ static_cast<uint32_t>(k * 32)) + static_cast<uint32_t>(n * 16 * kDepth * 2));
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        Mma(scores[t][2 * n], x[t], b[0], b[1]);
        Mma(scores[t][2 * n + 1], x[t], b[2], b[3]);
      }
    }
  }
}

// sums += weights values, of 8 kEights values.
template <int kDepth, int kTiles, int kEights>
__device__ __forceinline__ void AddValues(Sums<kDepth, kTiles>& sums,
                                          const float (&weights)[kTiles][kEights][4],
                                          uint32_t values) {
  const uint32_t at = PieceAt<kDepth>(values, Lane() % 16, Lane() / 16);
#pragma unroll
  for (int n = 0; n < kEights / 2; ++n) {
    uint32_t x[kTiles][4];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) FragmentOf(x[t], weights[t][2 * n], weights[t][2 * n + 1]);
#pragma unroll
    for (int d = 0; d < kDepth / 16; ++d) {
      uint32_t b[4];
      LoadTransposed(
          b, (at ^ static_cast<uint32_t>(d * 32)) + static_cast<uint32_t>(n * 16 * kDepth * 2));
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        Mma(sums[t][2 * d], x[t], b[0], b[1]);
        Mma(sums[t][2 * d + 1], x[t], b[2], b[3]);
      }
    }
  }
}

inline constexpr float kLog2E = 1.44269504f;

// What softmax over the keys so far has come to, of a lane's queries (mma.cuh: rows l/4 and l/4 + 8
// of each tile).
template <int kTiles>
struct OnlineSoftmax {
  float most[kTiles][2], total[kTiles][2];  // total: of this lane's keys

  __device__ void Clear() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) most[t][half] = -INFINITY, total[t][half] = 0;
  }
  // Of all keys.
  __device__ float Total(int t, int half) const {
    float sum = total[t][half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }
};

// What scores subtract as exponents of 2, where `most` is the largest score so far. No key yet:
// weights are 0 relative to anything.
__device__ __forceinline__ float BaseOf(float most, float scale) {
  return most == -INFINITY ? 0.0f : __fmul_rn(most, scale);
}
// What sums and totals so far are multiplied by when the largest score rises from `before`. Exactly
// 1 where it stays: a tile of keys that a query does not see then changes none of its bits.
__device__ __forceinline__ float KeepOf(float before, float most, float scale) {
  return most == before ? 1.0f : Exp2(__fmaf_rn(before, scale, -BaseOf(most, scale)));
}

// Scores become weights relative to the largest score so far; sums and totals, too. `scale`: of
// scores as exponents of 2, above 0. The weights of a tile are added up by themselves, and then to
// the total: attention over a cache forms tiles side by side (cache/attention_in_order.cu).
template <int kDepth, int kTiles>
__device__ __forceinline__ void Weigh(Scores<kTiles>& scores, OnlineSoftmax<kTiles>& softmax,
                                      Sums<kDepth, kTiles>& sums, float scale) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = softmax.most[t][half];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
        most = fmaxf(most, fmaxf(scores[t][n][2 * half], scores[t][n][2 * half + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      const float base = BaseOf(most, scale), keep = KeepOf(softmax.most[t][half], most, scale);
      softmax.most[t][half] = most;
      float total = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[t][n][i] = Exp2(__fmaf_rn(scores[t][n][i], scale, -base));
          total = __fadd_rn(total, scores[t][n][i]);
        }
      softmax.total[t][half] = __fmaf_rn(softmax.total[t][half], keep, total);
#pragma unroll
      for (int d = 0; d < kDepth / 8; ++d)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i)
          sums[t][d][i] = __fmul_rn(sums[t][d][i], keep);
    }
}

}  // namespace millrace::cuda
