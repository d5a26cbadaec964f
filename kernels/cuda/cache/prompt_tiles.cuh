// The two products of attention_prompt.cu: a warp's queries by a tile of keys, and their weights by
// its values. Tiles are bf16 in shared memory, of rows of kDepth; fragments as in mma.cuh.
#pragma once

#include "kernels/cuda/tensor_cores/mma.cuh"

namespace millrace::cuda {

inline constexpr int kKeys = 64;  // of a tile

// Where piece `piece` (16 bytes) of row `row` of a tile lies: permuted by row % 8, so that eight
// rows' pieces of the same columns lie in different banks. Further pieces are at ^ (16 more), of
// rows eight further + what rows take: tiles begin at multiples of a row.
template <int kDepth>
__device__ __forceinline__ uint32_t PieceAt(uint32_t tile, int row, int piece) {
  return tile + static_cast<uint32_t>(row * kDepth * 2 + (piece ^ (row % 8)) * 16);
}

__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int WarpOfBlock() { return static_cast<int>(threadIdx.x) / kWarp; }

// A warp's queries as operands of products: in registers as long as there is room.
template <int kDepth, int kTiles>
class Queries {
 public:
  __device__ explicit Queries(uint32_t tile)
      : at_(PieceAt<kDepth>(tile, WarpOfBlock() * kTiles * 16 + Lane() % 16, Lane() / 16)) {}

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
  static constexpr bool kHeld = kTiles * kDepth <= 128;
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

template <int kTiles>
using Scores = float[kTiles][kKeys / 8][4];
template <int kDepth, int kTiles>
using Sums = float[kTiles][kDepth / 8][4];

template <int kDepth, int kTiles>
__device__ __forceinline__ void MultiplyKeys(Scores<kTiles>& scores,
                                             const Queries<kDepth, kTiles>& queries,
                                             uint32_t keys) {
  const uint32_t at = PieceAt<kDepth>(keys, Lane() % 8 + Lane() / 16 * 8, Lane() / 8 % 2);
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    uint32_t x[kTiles][4];
    queries.Get(x, k);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
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

template <int kDepth, int kTiles>
__device__ __forceinline__ void AddValues(Sums<kDepth, kTiles>& sums, const Scores<kTiles>& weights,
                                          uint32_t values) {
  const uint32_t at = PieceAt<kDepth>(values, Lane() % 16, Lane() / 16);
#pragma unroll
  for (int n = 0; n < kKeys / 16; ++n) {
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

}  // namespace millrace::cuda
