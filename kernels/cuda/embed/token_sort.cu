#include "kernels/cuda/embed/embed_grad_launch.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/ops/cuda_blocking.h"

namespace millrace::cuda {
namespace {

// A block sorts a tile of rows by one digit. Its warps take consecutive stretches of them, a
// stretch 32 rows at a time: "earlier in the tile" is "lower warp, earlier round, lower lane". A
// thread is a digit in between.
constexpr int kThreads = 1 << EmbedGradScratch::kMaxDigitBits;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBatch =
    4;  // rows that a thread loads before it uses the first; a tile is whole batches
constexpr unsigned kAllLanes = 0xffffffffu;

struct Pass {
  const TokenSortArgs& a;
  int number;

  // Where pass `number` puts its keys or order.
  __device__ static int32_t* Turn(int32_t* const (&two)[2], int number) {
    return number % 2 == 0 ? two[0] : two[1];
  }
  __device__ int Key(int row) const {
    if (number > 0) return Turn(a.keys, number - 1)[row];
    const auto length = static_cast<uint32_t>(a.tokens.length),
               r = static_cast<uint32_t>(a.first + row);
    return max(TokenAt(a.tokens, r / length, r % length), 0);
  }
  __device__ int Order(int row) const { return number > 0 ? Turn(a.order, number - 1)[row] : row; }
  __device__ int Digit(int key) const {
    return key >> (number * a.digit_bits) & ((1 << a.digit_bits) - 1);
  }
};

// counts[block][digit]: rows of the block's tile with that digit. Integer
// atomics: the order is no matter.
__global__ void __launch_bounds__(kThreads)
    CountDigitsKernel(const TokenSortArgs a, const int number) {
  BeginKernel();
  __shared__ int count[kThreads];
  const Pass pass{a, number};
  const int thread = static_cast<int>(threadIdx.x), begin = static_cast<int>(blockIdx.x) * a.tile;
  count[thread] = 0;
  __syncthreads();
  for (int first = begin + thread; first < begin + a.tile; first += kBatch * kThreads) {
    int key[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u)
      if (first + u * kThreads < a.rows) key[u] = pass.Key(first + u * kThreads);
#pragma unroll
    for (int u = 0; u < kBatch; ++u)
      if (first + u * kThreads < a.rows) atomicAdd(&count[pass.Digit(key[u])], 1);
  }
  __syncthreads();
  if (thread < 1 << a.digit_bits) a.counts[(blockIdx.x << a.digit_bits) + thread] = count[thread];
}

// The sum over threads below this one.
__device__ int SumBelow(int own, int (&of_warp)[kWarps]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  int sum = own;  // of lanes up to this one
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) {
    const int below = __shfl_up_sync(kAllLanes, sum, d);
    if (lane >= d) sum += below;
  }
  if (lane == kWarp - 1) of_warp[warp] = sum;
  __syncthreads();
  sum -= own;
  for (int w = 0; w < warp; ++w) sum += of_warp[w];
  return sum;
}

// By warp and digit of a tile: first how many rows the warp has with the digit, then where its next
// one goes.
using Next = int[kWarps][kThreads];

// How a thread takes part in a tile: one row in each round, by the lane.
struct InTile {
  int warp, lane, rounds;
  int begin;  // the thread's row of round 0

  __device__ __forceinline__ explicit InTile(const TokenSortArgs& a)
      : warp(static_cast<int>(threadIdx.x) / kWarp),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        rounds(a.tile / kThreads),
        begin(static_cast<int>(blockIdx.x) * a.tile + warp * rounds * kWarp + lane) {}
  __device__ __forceinline__ int Row(int round) const { return begin + round * kWarp; }
  // Of the lanes in `peers`, which have one digit: this one is the first; those ahead of it.
  __device__ __forceinline__ bool First(unsigned peers) const { return Ahead(peers) == 0; }
  __device__ __forceinline__ unsigned Ahead(unsigned peers) const {
    return peers & ((1u << lane) - 1);
  }
};

// next[w][d] = rows of warp w with digit d.
__device__ __forceinline__ void CountRows(const Pass& pass, const InTile& tile, Next& next) {
#pragma unroll
  for (int w = 0; w < kWarps; ++w) next[w][threadIdx.x] = 0;
  __syncthreads();
  for (int round = 0; round < tile.rounds; round += kBatch) {
    int key[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int row = tile.Row(round + u);
      key[u] = row < pass.a.rows ? pass.Key(row) : -1;
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int digit = key[u] < 0 ? -1 : pass.Digit(key[u]);
      const unsigned peers = __match_any_sync(kAllLanes, digit);
      if (digit >= 0 && tile.First(peers)) next[tile.warp][digit] += __popc(peers);
      __syncwarp();
    }
  }
  __syncthreads();
}

// next[w][d]: from how many to where the first of them goes. A thread does it for its digit.
__device__ __forceinline__ void PlaceRows(const TokenSortArgs& a, Next& next,
                                          int (&of_warp)[kWarps]) {
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x),
            blocks = static_cast<int>(gridDim.x);
  // Rows with this thread's digit: of all blocks, and of the blocks before this one.
  int total = 0, before = 0;
  if (blocks == 1) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += next[w][thread];
  } else if (thread < 1 << a.digit_bits) {
#pragma unroll 8
    for (int b = 0; b < blocks; ++b) {
      const int count = a.counts[(b << a.digit_bits) + thread];
      total += count;
      before += b < block ? count : 0;
    }
  }
  int place = SumBelow(total, of_warp) + before;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const int count = next[w][thread];
    next[w][thread] = place;
    place += count;
  }
  __syncthreads();
}

__device__ __forceinline__ void MoveRows(const Pass& pass, const InTile& tile, Next& next) {
  int32_t* const to_keys = Pass::Turn(pass.a.keys, pass.number);
  int32_t* const to_order = Pass::Turn(pass.a.order, pass.number);
  for (int round = 0; round < tile.rounds; round += kBatch) {
    int key[kBatch], order[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int row = tile.Row(round + u);
      key[u] = row < pass.a.rows ? pass.Key(row) : -1;
      order[u] = row < pass.a.rows ? pass.Order(row) : 0;
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int digit = key[u] < 0 ? -1 : pass.Digit(key[u]);
      const unsigned peers = __match_any_sync(kAllLanes, digit);
      const int at = digit < 0 ? 0 : next[tile.warp][digit] + __popc(tile.Ahead(peers));
      __syncwarp();
      if (digit >= 0) {
        if (tile.First(peers)) next[tile.warp][digit] += __popc(peers);
        to_keys[at] = key[u];
        to_order[at] = order[u];
      }
      __syncwarp();
    }
  }
}

// Moves each row to its place by the digits of passes [from, to); more than one only
// if one block has all rows.
__global__ void __launch_bounds__(kThreads)
    ScatterDigitsKernel(const TokenSortArgs a, const int from, const int to) {
  BeginKernel();
  __shared__ Next next;
  __shared__ int of_warp[kWarps];
  const InTile tile(a);
  for (int number = from; number < to; ++number) {
    const Pass pass{a, number};
    CountRows(pass, tile, next);
    PlaceRows(a, next, of_warp);
    MoveRows(pass, tile, next);
    __syncthreads();  // the next pass reads what others moved
  }
}

}  // namespace

void LaunchTokenSort(const TokenSortArgs& args, const Launch& launch) {
  if (args.blocks == 0) return;
  if (args.blocks == 1) {
    LaunchKernel(launch, 1, kThreads, 0, ScatterDigitsKernel, args, 0, args.passes);
    return;
  }
  for (int pass = 0; pass < args.passes; ++pass) {
    LaunchKernel(launch, args.blocks, kThreads, 0, CountDigitsKernel, args, pass);
    LaunchKernel(launch, args.blocks, kThreads, 0, ScatterDigitsKernel, args, pass, pass + 1);
  }
}

}  // namespace millrace::cuda
