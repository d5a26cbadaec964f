#include "kernels/cuda/moe/expert_exchange_launch.h"
#include "kernels/cuda/pack.cuh"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kPiecesThreads = 256, kMostExperts = 1024, kRowsOfBlock = 4096;

// blockIdx.y has a piece, a thread one of its rows.
__global__ void __launch_bounds__(kPiecesThreads) PiecesKernel(const PiecesArgs a) {
  BeginKernel();
  const int piece = static_cast<int>(blockIdx.y), first = piece * a.experts,
            row = static_cast<int>(blockIdx.x) * kPiecesThreads + static_cast<int>(threadIdx.x);
  const int begin = a.offsets[first], wanted = a.offsets[first + a.experts] - begin,
            live = min(wanted, a.rows), at = piece * a.rows + row;
  if (blockIdx.x == 0)
    for (int e = first + static_cast<int>(threadIdx.x); e < first + a.experts; e += kPiecesThreads)
      a.counts[e] = min(a.offsets[e + 1], begin + live) - min(a.offsets[e], begin + live);
  if (a.dropped != nullptr && piece == 0 && row == 0) {
    int64_t dropped = 0;
    for (int p = 0; p < a.ranks; ++p)
      dropped += max(a.offsets[(p + 1) * a.experts] - a.offsets[p * a.experts] - a.rows, 0);
    *a.dropped = (a.accumulate ? *a.dropped : 0.0f) + static_cast<float>(dropped);
  }
  for (int i = a.rows + row; i < wanted; i += static_cast<int>(gridDim.x) * kPiecesThreads)
    a.piece_slots[a.pairs[begin + i]] = (piece + 1) * a.rows - 1;
  if (row >= a.rows) return;
  const int pair = row < live ? a.pairs[begin + row] : -1;
  a.piece_pairs[at] = pair;
  if (pair >= 0) a.piece_slots[pair] = at;
}

// The inclusive sum over the block's threads, all 1024 of them. `sums` [kWarp] is shared.
__device__ int BlockInclusiveSum(int value, int* sums) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  int sum = InclusiveSum(value);
  __syncthreads();
  if (lane == kWarp - 1) sums[warp] = sum;
  __syncthreads();
  if (warp == 0) sums[lane] = InclusiveSum(sums[lane]);
  __syncthreads();
  return warp > 0 ? sum + sums[warp - 1] : sum;
}

// blockIdx.y has a piece. Thread l first has expert l: where its rows end in the piece, and which
// slots they get; then rows of the piece, each by a search for its expert.
__global__ void __launch_bounds__(kMostExperts) ReceivedKernel(const ReceivedArgs a) {
  __shared__ int sums[kWarp], ends[kMostExperts], shift[kMostExperts];
  BeginKernel();
  const int piece = static_cast<int>(blockIdx.y), l = static_cast<int>(threadIdx.x);
  int all = 0, before = 0, own = 0;
  if (l < a.experts)
    for (int q = 0; q < a.ranks; ++q) {
      const int count = a.counts[q * a.experts + l];
      all += count;
      if (q < piece) before += count;
      if (q == piece) own = count;
    }
  const int end = BlockInclusiveSum(own, sums), slots_end = BlockInclusiveSum(all, sums);
  __shared__ int live;
  ends[l] = end;
  shift[l] = slots_end - all + before - (end - own);
  if (l == kMostExperts - 1) live = slots_end;
  if (blockIdx.x == 0 && piece == 0 && l < a.experts) {
    if (l == 0) a.offsets[0] = 0;
    a.offsets[l + 1] = slots_end;
  }
  __syncthreads();
  const int first = static_cast<int>(blockIdx.x) * kRowsOfBlock,
            last = min(first + kRowsOfBlock, a.rows);
  for (int row = first + l; row < last; row += kMostExperts) {
    const int at = piece * a.rows + row;
    if (at >= live) a.rows_of[at] = -1;
    if (row >= ends[a.experts - 1]) {
      a.slots[at] = -1;
      continue;
    }
    int low = 0, high = a.experts - 1;  // the first expert whose rows end behind this one
    while (low < high) {
      const int middle = (low + high) / 2;
      if (ends[middle] > row)
        high = middle;
      else
        low = middle + 1;
    }
    const int slot = row + shift[low];
    a.slots[at] = slot;
    a.rows_of[slot] = at;
  }
}

}  // namespace

void LaunchExpertPieces(const PiecesArgs& args, const Launch& launch) {
  const auto blocks = static_cast<unsigned>(CeilDiv(args.rows > 0 ? args.rows : 1, kPiecesThreads));
  LaunchKernel(launch, dim3(blocks, static_cast<unsigned>(args.ranks)), kPiecesThreads, 0,
               PiecesKernel, args);
}

void LaunchReceivedSlots(const ReceivedArgs& args, const Launch& launch) {
  const auto blocks = static_cast<unsigned>(CeilDiv(args.rows > 0 ? args.rows : 1, kRowsOfBlock));
  LaunchKernel(launch, dim3(blocks, static_cast<unsigned>(args.ranks)), kMostExperts, 0,
               ReceivedKernel, args);
}

}  // namespace millrace::cuda
