// How the CUDA backend cuts its ops into blocks, and the scratch that follows. Planning and
// kernels/cuda read the same numbers here, so that a planned workspace always is the one the
// kernel carves up. All of it follows from shapes: a plan is the same on every GPU, and so
// are the orders of additions.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "runtime/base/arithmetic.h"

namespace millrace::cuda {

// How the packs of a norm's row, of eight elements, are dealt to threads: pack p belongs to thread
// p % (32 * warps), and is its p / (32 * warps)-th of `packs`.
struct RowShape {
  int warps = 1;  // per row: a power of two
  int packs = 1;  // per thread: 1 to 4
};
inline constexpr int64_t kNormPack = 8;
inline constexpr int kMaxRowWarps = 16;
inline constexpr int64_t kMaxNormColumns = int64_t{kMaxRowWarps} * 32 * 4 * kNormPack;

// The fewest warps that leave a thread at most `packs`, a number that does not spill registers.
constexpr RowShape RowShapeOf(int64_t columns, int packs) {
  const int64_t all = CeilDiv(columns, kNormPack);
  RowShape shape;
  while (shape.warps < kMaxRowWarps && all > int64_t{shape.warps} * 32 * packs) shape.warps *= 2;
  shape.packs = columns > 0 ? static_cast<int>(CeilDiv(all, int64_t{shape.warps} * 32)) : 1;
  return shape;
}

// Most packs per thread that leave no registers to spill; norm_grad on f32 spills at three.
inline constexpr int kNormPacks = 4, kNormGradPacks = 3, kNormGradPacksF32 = 2;

// `is_short`: all rows of norm_grad have elements of 16 bits.
constexpr RowShape NormGradShape(int64_t columns, bool is_short) {
  return RowShapeOf(columns, is_short ? kNormGradPacks : kNormGradPacksF32);
}

// Rows that a block of norm_grad works on at a time.
constexpr int NormGradGroups(RowShape shape) { return shape.warps < 8 ? 8 / shape.warps : 1; }

// Blocks of norm_grad, at most, that leave sums over rows, in double: twice the multiprocessors of
// an H100 or H200; and among how many rows are dealt, so that each gets as many as any other.
inline constexpr int64_t kNormGradBlocks = 264;
constexpr int NormGradBlocksFor(int64_t rows, RowShape shape) {
  const int64_t groups = NormGradGroups(shape);
  const int64_t turns = CeilDiv(rows, kNormGradBlocks * groups);
  return static_cast<int>(CeilDiv(rows, (turns > 0 ? turns : 1) * groups));
}

// head_norm: a warp has a head, each lane up to eight elements. Blocks of its gradient that keep
// sums of two weights, in double.
inline constexpr int64_t kMaxHeadNormDepth = 256;
inline constexpr int64_t kHeadNormGradBlocks = 264;
constexpr int64_t HeadNormGradBytes(int64_t depth) { return kHeadNormGradBlocks * 2 * depth * 8; }

// Blocks of column_sum, at most, that each keep f32 sums of a chunk of rows.
inline constexpr int64_t kColumnSumBlocks = 264;
constexpr int64_t ColumnSumBytes(int64_t columns) { return kColumnSumBlocks * columns * 4; }

// Blocks of sum_squares, at most, each with a partial sum in double, and threads of a block.
// Threads take four elements at a time.
inline constexpr int64_t kSumSquaresBlocks = 264;
inline constexpr int kSumSquaresThreads = 256;
constexpr int64_t kSumSquaresBytes = kSumSquaresBlocks * 8;
constexpr int64_t SumSquaresBlocks(int64_t n) {
  return std::min(kSumSquaresBlocks, CeilDiv(n, 4 * kSumSquaresThreads));
}

// muon_normalise: blocks for each matrix, at most, that each keep a partial sum of squares in
// double.
inline constexpr int64_t kMatrixSquaresBlocks = 32;
constexpr int64_t MatrixSquaresBlocks(int64_t numel) {
  return std::min(kMatrixSquaresBlocks, CeilDiv(numel, 4 * kSumSquaresThreads));
}
constexpr int64_t MatrixSquaresBytes(int64_t matrices, int64_t numel) {
  return matrices * MatrixSquaresBlocks(numel) * 8;
}

// expert_slots counts pairs by tiles: i32 [tiles, E].
inline constexpr int64_t kSlotTile = 1024;
constexpr int64_t ExpertSlotsBytes(int64_t pairs, int64_t experts) {
  return CeilDiv(pairs, kSlotTile) * experts * 4;
}

// router_stats sums the rows of a tile, then the tiles of a group: f32 [groups, tiles, 2, E].
inline constexpr int64_t kRouterTile = 64;
constexpr int64_t RouterStatsBytes(int64_t rows, int64_t groups, int64_t experts) {
  return groups * CeilDiv(rows / groups, kRouterTile) * 2 * experts * 4;
}

// The losses of a chunk's rows, in double; behind them what each row tallies, f32.
constexpr int64_t CrossEntropyBytes(int64_t rows, int64_t tallied) {
  return rows * (8 + 4 * tallied);
}

// embed_grad sorts its rows by token (radix sort, least significant digit first), then adds up the
// sorted rows in tiles. A token whose rows cross the border of tiles is summed in parts: a tile has
// at most two, one that reaches in from the left and one that goes on to the right.
struct EmbedGradScratch {
  static constexpr int kMaxDigitBits = 9;
  static constexpr int64_t kMaxSumTile = 64;

  int64_t rows, vocab, columns;

  constexpr int bits() const {
    return vocab < 2 ? 1 : std::bit_width(static_cast<uint64_t>(vocab - 1));
  }
  constexpr int passes() const { return (bits() + kMaxDigitBits - 1) / kMaxDigitBits; }
  constexpr int digit_bits() const { return (bits() + passes() - 1) / passes(); }
  constexpr int64_t digits() const { return int64_t{1} << digit_bits(); }
  // Rows per block of the sort, a multiple of 2048. The keys of few rows are ranked in one launch
  // and are one tile; beyond 64 blocks tiles grow, since every block looks at the counts of all.
  constexpr int64_t sort_tile() const {
    return rows <= 4096 ? 4096 : std::max<int64_t>(1, CeilDiv(rows, 64 * 2048)) * 2048;
  }
  constexpr int64_t sort_blocks() const { return CeilDiv(rows, sort_tile()); }
  // Sorted rows per block of the sums: small tiles keep more multiprocessors busy.
  constexpr int64_t sum_tile() const { return rows <= 8192 ? 16 : kMaxSumTile; }
  constexpr int64_t sum_tiles() const { return CeilDiv(rows, sum_tile()); }

  // Offsets in bytes, in this order; each piece aligned to 16 bytes.
  constexpr int64_t keys(int which) const {
    return which * 2 * Aligned(rows * 4);
  }  // i32 [rows], 2 of it
  constexpr int64_t order(int which) const {
    return keys(which) + Aligned(rows * 4);
  }                                                     // i32 [rows], 2 of it
  constexpr int64_t counts() const { return keys(2); }  // i32 [blocks, digits]
  constexpr int64_t partials() const {                  // f32 [tiles, 2, C]
    return counts() + Aligned(digits() * sort_blocks() * 4);
  }
  constexpr int64_t bytes() const { return partials() + sum_tiles() * 2 * columns * 4; }

 private:
  static constexpr int64_t Aligned(int64_t bytes) { return RoundUp(bytes, 16); }
};

}  // namespace millrace::cuda
