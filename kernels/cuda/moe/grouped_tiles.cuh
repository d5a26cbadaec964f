// Which tiles of a grouped product a block works on. Blocks are as many as run at once, and take
// every gridDim-th tile of those that there are: their number is known on the device alone.
//
// Tiles of an expert lie together, neighbours share columns of b.
#pragma once

#include "kernels/cuda/moe/grouped_launch.h"
#include "kernels/cuda/pack.cuh"

namespace millrace::cuda {

inline constexpr int kMostExperts = 1024;  // kMaxExperts of moe_ops.h

// Exclusive sums of the experts' tiles, in shared memory.
struct TileStarts {
  int begin[kMostExperts + 1];
};

struct GroupedTile {
  int expert;
  int first_slot, slots;  // of the expert
  int m0, n0;             // of the tile, in elements
};

template <Slots S, int kTileM>
__device__ __forceinline__ int TileRows(const GroupedArgs& a, int slots) {
  return ((S == Slots::kRows ? slots : a.m) + kTileM - 1) / kTileM;
}

// Turns begin[e + 1], the tiles of e, into the sum of those of all up to e, and begin[0] into 0. By
// all threads of the block, behind a barrier; ends with one.
__device__ __forceinline__ void SumTiles(int* begin, int experts) {
  if (threadIdx.x < kWarp) {
    const int lane = static_cast<int>(threadIdx.x);
    int before = 0;
    for (int e0 = 0; e0 < experts; e0 += kWarp) {
      const int e = e0 + lane;
      const int sum = before + InclusiveSum(e < experts ? begin[e + 1] : 0);
      if (e < experts) begin[e + 1] = sum;
      before = __shfl_sync(0xffffffffu, sum, kWarp - 1);
    }
    if (lane == 0) begin[0] = 0;
  }
  __syncthreads();
}

// By all threads of the block; ends with a barrier. Returns the number of tiles.
template <Slots S, int kTileM, int kTileN>
__device__ int FindTileStarts(const GroupedArgs& a, TileStarts& starts) {
  const int columns = (a.n + kTileN - 1) / kTileN, threads = static_cast<int>(blockDim.x);
  for (int e = static_cast<int>(threadIdx.x); e < a.experts; e += threads)
    starts.begin[e + 1] = TileRows<S, kTileM>(a, a.offsets[e + 1] - a.offsets[e]) * columns;
  __syncthreads();
  SumTiles(starts.begin, a.experts);
  return starts.begin[a.experts];
}

template <Slots S, int kTileM, int kTileN>
__device__ GroupedTile FindTile(const GroupedArgs& a, const TileStarts& starts, int tile) {
  int low = 0, high = a.experts - 1;  // the last expert whose tiles begin at or before this one
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (starts.begin[middle] <= tile)
      low = middle;
    else
      high = middle - 1;
  }
  GroupedTile t;
  t.expert = low;
  t.first_slot = a.offsets[low];
  t.slots = a.offsets[low + 1] - t.first_slot;
  const int rows = TileRows<S, kTileM>(a, t.slots), within = tile - starts.begin[low];
  t.m0 = within % rows * kTileM;
  t.n0 = within / rows * kTileN;
  return t;
}

// The operands and dims of one expert.
struct ExpertProduct {
  const std::byte *a, *b;  // at its first element
  std::byte* out;
  int m, n, k;
};

template <Slots S>
__device__ __forceinline__ ExpertProduct ProductOf(const GroupedArgs& g, const GroupedTile& t,
                                                   int bytes) {
  const int64_t slot = t.first_slot, e = t.expert;
  ExpertProduct p;
  p.a = g.a.data + (S == Slots::kRows ? slot * g.a.mn : slot * g.a.k) * bytes;
  p.b = g.b.data + (S == Slots::kRows ? e * g.b.expert : slot * g.b.k) * bytes;
  p.out = g.out + (S == Slots::kRows ? slot * g.out_row : e * g.out_expert) * (g.out_bf16 ? 2 : 4);
  p.m = S == Slots::kRows ? t.slots : g.m;
  p.n = g.n;
  p.k = S == Slots::kRows ? g.k : t.slots;
  return p;
}

}  // namespace millrace::cuda
