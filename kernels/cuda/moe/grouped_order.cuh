// In which order the blocks of grouped_wgmma.cuh take tiles: of the experts with most slots first,
// so that little is left when the first blocks find nothing more.
#pragma once

#include "kernels/cuda/moe/grouped_tiles.cuh"

namespace millrace::cuda {

// A tile as its copies carry it. rows: those that there are from m0 on; below 0: no more tiles.
struct StagedTile {
  int expert, first_slot, m0, n0, rows, depth;
};

// Experts by falling numbers of slots, of equal ones the lower first; in that order, exclusive sums
// of their tiles. In shared memory.
struct OrderedTiles {
  int begin[kMostExperts + 1];
  uint16_t order[kMostExperts];

  // The place in `order` of the expert of tile number `tile`.
  __device__ __forceinline__ int IndexOf(int experts, int tile) const {
    int low = 0, high = experts - 1;  // the last whose tiles begin at or before this one
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (begin[middle] <= tile)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
};

// The slots ahead of an expert's. kOne: all are of one expert.
template <bool kOne>
__device__ __forceinline__ int SlotsAhead(const GroupedArgs& g, int expert) {
  if constexpr (kOne) return expert * g.m;
  return g.offsets[expert];
}

// By all threads of the block; ends with a barrier. Returns the number of tiles.
template <Slots S, int kTileM, int kTileN, bool kOne = false>
__device__ int OrderTiles(const GroupedArgs& g, OrderedTiles& list) {
  const int first = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const auto slots = [&](int e) { return SlotsAhead<kOne>(g, e + 1) - SlotsAhead<kOne>(g, e); };
  for (int e = first; e < g.experts; e += threads) list.begin[e] = slots(e);
  __syncthreads();
  for (int e = first; e < g.experts; e += threads) {
    const int own = list.begin[e];
    int before = 0;
    for (int other = 0; other < g.experts; ++other)
      before += list.begin[other] > own || (list.begin[other] == own && other < e) ? 1 : 0;
    list.order[before] = static_cast<uint16_t>(e);
  }
  __syncthreads();
  const int columns = (g.n + kTileN - 1) / kTileN;
  for (int i = first; i < g.experts; i += threads)
    list.begin[i + 1] = TileRows<S, kTileM>(g, slots(list.order[i])) * columns;
  __syncthreads();
  SumTiles(list.begin, g.experts);
  return list.begin[g.experts];
}

// The next tile beyond those that blocks begin with: which one, of a grid's `ticket`, two words
// (tickets.h).
__device__ __forceinline__ int TakeTicket(unsigned* ticket) {
  return static_cast<int>(gridDim.x + atomicAdd(ticket, 1u));
}
// By each block, once, behind its last TakeTicket: the last one of the grid sets the words to zero.
__device__ __forceinline__ void ReturnTickets(unsigned* ticket) {
  if (atomicAdd(ticket + 1, 1u) + 1 < gridDim.x) return;
  ticket[0] = 0;
  ticket[1] = 0;
}

}  // namespace millrace::cuda
