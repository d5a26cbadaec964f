#include "kernels/cuda/embed/embed_grad_launch.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

// Where the half of the tokens that is in use begins.
__device__ __forceinline__ int64_t ParityOf(const TokenSortArgs& a) {
  return a.tokens.scalars->token_parity * a.tokens.parity_stride;
}
__device__ __forceinline__ int32_t TokenOf(const TokenSortArgs& a, int64_t parity, int row) {
  const auto r = static_cast<uint32_t>(a.first + row);
  const uint32_t b = a.length.Quotient(r), t = r - b * a.length.divisor;
  return a.tokens.data[parity + b * a.tokens.batch_stride + t * a.tokens.length_stride];
}
// A row without a token adds to token 0, which embed reads for it.
__device__ __forceinline__ int32_t KeyOf(int32_t token) { return max(token, 0); }

// Few rows: a row goes to its rank, the number of keys that are smaller, or equal and ahead of it.
// A block has all keys in shared memory; a warp ranks two rows. 1024 rows make 32 blocks, few
// enough for AsksForSplit (launch.h).
constexpr int kMaxRanked = static_cast<int>(EmbedGradScratch{1, 1, 1}.sort_tile());
constexpr int kRankThreads = 512;
constexpr int kRowsOfWarp = 2;
constexpr int kRowsOfBlock = kRankThreads / kWarp * kRowsOfWarp;
constexpr int kKeysOfThread = kMaxRanked / kRankThreads;  // that it loads, all in flight
constexpr int kFour = 4;                                  // keys that a lane reads at once
constexpr uint32_t kNoKey = 0x7fffffff;                   // no key is above it
static_assert(kMaxRanked % kRankThreads == 0 && kFour % kRowsOfWarp == 0);

// keys[row] of all rows, and kNoKey up to whole fours.
__device__ __forceinline__ void LoadKeys(const TokenSortArgs& a, uint32_t (&keys)[kMaxRanked]) {
  const int64_t parity = ParityOf(a);
  const int thread = static_cast<int>(threadIdx.x), all = (a.rows + kFour - 1) / kFour * kFour;
  int32_t token[kKeysOfThread];
#pragma unroll
  for (int u = 0; u < kKeysOfThread; ++u) {
    if (u * kRankThreads >= a.rows) break;  // the block jumps over what is not there
    const int row = u * kRankThreads + thread;
    if (row < a.rows) token[u] = TokenOf(a, parity, row);
  }
#pragma unroll
  for (int u = 0; u < kKeysOfThread; ++u) {
    if (u * kRankThreads >= a.rows) break;
    const int row = u * kRankThreads + thread;
    if (row < all) keys[row] = row < a.rows ? static_cast<uint32_t>(KeyOf(token[u])) : kNoKey;
  }
  __syncthreads();
}

// 1 if key < end, which are at most 2^31 apart.
__device__ __forceinline__ int Below(uint32_t key, uint32_t end) {
  return static_cast<int>((key - end) >> 31);
}

__global__ void __launch_bounds__(kRankThreads) RankKernel(const TokenSortArgs a) {
  BeginKernel();
  alignas(sizeof(uint4)) __shared__ uint32_t keys[kMaxRanked];
  LoadKeys(a, keys);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int first = static_cast<int>(blockIdx.x) * kRowsOfBlock + warp * kRowsOfWarp;
  if (first >= a.rows) return;
  const int own_four = first / kFour, fours = (a.rows + kFour - 1) / kFour;

  uint32_t own[kRowsOfWarp];
  int ahead[kRowsOfWarp];  // keys that this lane has found to be ahead of the row's
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    own[r] = keys[first + r];
    // Equal ones of the row's own four; of all fours those that are smaller are counted below.
    ahead[r] = lane < (first + r) % kFour && keys[own_four * kFour + lane] == own[r] ? 1 : 0;
  }
#pragma unroll 4
  for (int four = lane; four < fours; four += kWarp) {
    const uint4 k = reinterpret_cast<const uint4*>(keys)[four];
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
      // Of the fours before its own, equal ones as well.
      const uint32_t end = own[r] + (four < own_four ? 1 : 0);
      ahead[r] += Below(k.x, end) + Below(k.y, end) + Below(k.z, end) + Below(k.w, end);
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) ahead[r] = __reduce_add_sync(kAllLanes, ahead[r]);
  const int result = (a.passes - 1) % 2;
  int32_t* const to_keys = result == 0 ? a.keys[0] : a.keys[1];
  int32_t* const to_order = result == 0 ? a.order[0] : a.order[1];
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    if (lane != r || first + r >= a.rows) continue;
    to_keys[ahead[r]] = static_cast<int32_t>(own[r]);
    to_order[ahead[r]] = first + r;
  }
}

// More rows: a block sorts a tile of rows by one digit. Its warps take consecutive stretches of
// them, a stretch 32 rows at a time: "earlier in the tile" is "lower warp, earlier round, lower
// lane". A thread is a digit in between.
constexpr int kThreads = 1 << EmbedGradScratch::kMaxDigitBits;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBatch =
    4;  // rows that a thread loads before it uses the first; a tile is whole batches

struct Pass {
  const TokenSortArgs& a;
  int number;

  // Where pass `number` puts its keys or order.
  __device__ static int32_t* Turn(int32_t* const (&two)[2], int number) {
    return number % 2 == 0 ? two[0] : two[1];
  }
  __device__ int Key(int row) const {
    return number > 0 ? Turn(a.keys, number - 1)[row] : KeyOf(TokenOf(a, ParityOf(a), row));
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
  if (thread < 1 << a.digit_bits) {
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

// Moves each row to its place by the digit of a pass.
__global__ void __launch_bounds__(kThreads)
    ScatterDigitsKernel(const TokenSortArgs a, const int number) {
  BeginKernel();
  __shared__ Next next;
  __shared__ int of_warp[kWarps];
  const InTile tile(a);
  const Pass pass{a, number};
  CountRows(pass, tile, next);
  PlaceRows(a, next, of_warp);
  MoveRows(pass, tile, next);
}

}  // namespace

void LaunchTokenSort(const TokenSortArgs& args, const Launch& launch) {
  if (args.blocks == 0) return;
  if (args.blocks == 1) {
    const auto blocks = static_cast<unsigned>(CeilDiv(args.rows, kRowsOfBlock));
    LaunchKernel(launch, blocks, kRankThreads, 0, RankKernel, args);
    return;
  }
  for (int pass = 0; pass < args.passes; ++pass) {
    LaunchKernel(launch, args.blocks, kThreads, 0, CountDigitsKernel, args, pass);
    LaunchKernel(launch, args.blocks, kThreads, 0, ScatterDigitsKernel, args, pass);
  }
}

}  // namespace millrace::cuda
