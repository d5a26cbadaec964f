// The pairs (i, j) of positions of a chunk with i >= j, for the scan's kernels on tensor cores, in
// blocks of 16 i and 16 j. The warps share the blocks evenly; what a head makes of them goes by
// shared memory to the warps that multiply it, which have rows of blocks.
#pragma once

#include "kernels/cuda/mamba/ssd_tiles.cuh"

namespace millrace::cuda {

inline constexpr int kPairThreads = 512, kPairWarps = kPairThreads / kWarp;
// Blocks of a row or column; of all pairs; and the most that one warp has.
inline constexpr int kSide = kQ / 16, kBlocks = kSide * (kSide + 1) / 2,
                     kSlots = (kBlocks + kPairWarps - 1) / kPairWarps;

// Blocks have rows i, or rows j (kByJ).
template <bool kByJ>
struct Block {
  int i, j;  // in blocks
  // Of a row of blocks, neighbours.
  __device__ int index() const {
    return kByJ ? j * (2 * kSide + 1 - j) / 2 + i - j : i * (i + 1) / 2 + j;
  }
};

// Rows of blocks that a warp multiplies, and half of the channels. The long rows of one half are
// with the short ones of the other on each quarter of a multiprocessor.
struct Rows16 {
  int tile, row, channel;
  __device__ Rows16() {
    const int warp = static_cast<int>(threadIdx.x) / kWarp, half = warp / kSide;
    tile = half == 0 ? warp : 2 * kSide - 1 - warp;
    row = 16 * tile, channel = half * kP / 2;
  }
};
static_assert(kPairWarps == 2 * kSide);
inline constexpr int kHalfTiles = kP / 16;  // of eight channels

// Whether a warp has a block in a slot, and which. The warps with short rows have more.
template <bool kByJ>
struct PairSlots {
  static __device__ int Index(int slot) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    if (slot < kSlots - 1) return warp + slot * kPairWarps;
    constexpr int kFirst = kByJ ? kSide / 2 : 0;  // of the first half
    return warp >= kFirst && warp < kFirst + kMore ? kBlocks - kMore + warp - kFirst : kBlocks;
  }
  static constexpr int kMore = kBlocks - (kSlots - 1) * kPairWarps;
  static_assert(kMore <= kSide / 2);

  Block<kByJ> blocks[kSlots];
  __device__ PairSlots() {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      int left = Index(slot), row = 0;
      while (row < kSide - 1 && left >= LengthOf(row)) left -= LengthOf(row++);
      blocks[slot] = kByJ ? Block<kByJ>{row + left, row} : Block<kByJ>{row, left};
    }
  }
  static __device__ bool Has(int slot) { return Index(slot) < kBlocks; }
  static __device__ int LengthOf(int row) { return kByJ ? kSide - row : row + 1; }
};

// What a lane's accumulators of [16, .] belong to: rows of its lower and upper half, and the first
// column of each tile of eight.
struct Lane {
  int lane, row, column;
  __device__ explicit Lane(int first_row)
      : lane(static_cast<int>(threadIdx.x) % kWarp),
        row(first_row + lane / 4),
        column(lane % 4 * 2) {}
  __device__ int Row(int e) const { return row + e / 2 * 8; }  // of element e of a tile
};

// left[row + r, :] . right[column + c, :] over N, of 16 rows and columns.
__device__ __forceinline__ void ProductsOfBlock(float (&d)[2][4], const Tile<kN>& left,
                                                const Tile<kN>& right, int row, int column) {
#pragma unroll
  for (int k = 0; k < kN; k += 16) {
    uint32_t x[4], b[4];
    left.LoadA(x, row, 0, 0, k);
    right.LoadB(b, 0, k, column, 0);
    Mma(d[0], x, b[0], b[1]);
    Mma(d[1], x, b[2], b[3]);
  }
}

// 2^(decay[i] - decay[j]) of a block, 0 for i < j. kByJ: its rows are j, its columns i. Beside the
// diagonal as a product: an exponent from j to the first i, and one from there to i, both <= 0.
template <bool kByJ>
__device__ __forceinline__ void DecaysOf(float (&w)[2][4], const Steps& steps,
                                         const Block<kByJ>& block) {
  const Lane l(0);
  const float *const of_i = steps.decay + 16 * block.i, *const of_j = steps.decay + 16 * block.j;
  if (block.i == block.j) {
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = l.Row(e), column = 8 * t + l.column + e % 2;
        const int i = kByJ ? column : row, j = kByJ ? row : column;
        w[t][e] = i < j ? 0.0f : Exp2(__fsub_rn(of_i[i], of_j[j]));
      }
    return;
  }
  const float first = of_i[0];
  const auto from_j = [&](int j) { return Exp2(__fsub_rn(first, of_j[j])); };
  const auto to_i = [&](int i) { return Exp2(__fsub_rn(of_i[i], first)); };
  float rows[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    rows[half] = kByJ ? from_j(l.row + 8 * half) : to_i(l.row + 8 * half);
#pragma unroll
  for (int t = 0; t < 2; ++t)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int at = 8 * t + l.column + c;
      const float column = kByJ ? to_i(at) : from_j(at);
      w[t][c] = __fmul_rn(rows[0], column), w[t][2 + c] = __fmul_rn(rows[1], column);
    }
}

// y[p] += left[row.., :] . state[channel + p, :]: of 16 rows and half the channels.
__device__ __forceinline__ void AddProduct(float (&y)[kHalfTiles][4], const Tile<kN>& left,
                                           const Tile<kN>& state, const Rows16& rows) {
#pragma unroll
  for (int k = 0; k < kN; k += 16) {
    uint32_t x[4];
    left.LoadA(x, rows.row, 0, 0, k);
#pragma unroll
    for (int t = 0; t < kHalfTiles; t += 2) {
      uint32_t b[4];
      state.LoadB(b, 0, k, rows.channel, 8 * t);
      Mma(y[t], x, b[0], b[1]);
      Mma(y[t + 1], x, b[2], b[3]);
    }
  }
}

// y[p] += block . right[column.., channel + p]; m: the block's fragment of this lane.
__device__ __forceinline__ void AddBlock(float (&y)[kHalfTiles][4], const uint4& m,
                                         const Tile<kP>& right, int column, int channel) {
  const uint32_t left[4] = {m.x, m.y, m.z, m.w};
#pragma unroll
  for (int t = 0; t < kHalfTiles; t += 2) {
    uint32_t b[4];
    right.LoadBTransposed(b, column, 0, channel, 8 * t);
    Mma(y[t], left, b[0], b[1]);
    Mma(y[t + 1], left, b[2], b[3]);
  }
}

// The same 16 rows and half of the channels of x or d_out, as accumulators have them.
struct OwnPairs {
  uint32_t a[kHalfTiles / 2][4];
  __device__ OwnPairs(const Tile<kP>& from, const Rows16& rows) {
#pragma unroll
    for (int t = 0; t < kHalfTiles / 2; ++t) from.LoadA(a[t], rows.row, 0, rows.channel, 16 * t);
  }
  // Of tile t, element 2 * half and the next.
  __device__ float2 At(int t, int half) const { return OfFragment(a[t / 2], t % 2, 2 * half); }
};

// Rows of accumulators, scaled.
template <int kTiles>
__device__ __forceinline__ void ScaleRows(float (&y)[kTiles][4], float low, float high) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    y[t][0] = __fmul_rn(y[t][0], low), y[t][1] = __fmul_rn(y[t][1], low);
    y[t][2] = __fmul_rn(y[t][2], high), y[t][3] = __fmul_rn(y[t][3], high);
  }
}

}  // namespace millrace::cuda
