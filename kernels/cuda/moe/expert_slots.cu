#include "kernels/cuda/moe/expert_rows_launch.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// A counting sort in three kernels: pairs of each tile by expert, where each tile's pairs of an
// expert begin, and the place of each pair. Counts do not depend on the order of their increments.
constexpr int kTile = static_cast<int>(kSlotTile), kCountThreads = 256, kMostExperts = 1024;
constexpr unsigned kAll = 0xffffffffu;

__global__ void __launch_bounds__(kCountThreads) CountKernel(const SlotsArgs a) {
  __shared__ int count[kMostExperts];
  BeginKernel();
  const int thread = static_cast<int>(threadIdx.x), begin = static_cast<int>(blockIdx.x) * kTile,
            end = min(begin + kTile, a.pairs);
  for (int e = thread; e < a.experts; e += kCountThreads) count[e] = 0;
  __syncthreads();
  for (int i = begin + thread; i < end; i += kCountThreads) atomicAdd(&count[a.ids[i]], 1);
  __syncthreads();
  for (int e = thread; e < a.experts; e += kCountThreads)
    a.counts[static_cast<int>(blockIdx.x) * a.experts + e] = count[e];
}

// Thread e has expert e.
__global__ void __launch_bounds__(kMostExperts) BeginsKernel(const SlotsArgs a) {
  __shared__ int sums[kWarp];
  BeginKernel();
  const int e = static_cast<int>(threadIdx.x), warp = e / kWarp, lane = e % kWarp;
  int total = 0;
  if (e < a.experts)
    for (int t = 0; t < a.tiles; ++t) total += a.counts[t * a.experts + e];
  int sum = InclusiveSum(total);
  if (lane == kWarp - 1) sums[warp] = sum;
  __syncthreads();
  if (warp == 0) sums[lane] = InclusiveSum(sums[lane]);
  __syncthreads();
  if (warp > 0) sum += sums[warp - 1];
  if (e >= a.experts) return;
  if (e == 0) a.offsets[0] = 0;
  a.offsets[e + 1] = sum;
  int begin = sum - total;
  for (int t = 0; t < a.tiles; ++t) {
    const int count = a.counts[t * a.experts + e];
    a.counts[t * a.experts + e] = begin;
    begin += count;
  }
}

// A warp takes its tile's pairs 32 at a time, in their order: of equal experts the lower lane is
// first.
__global__ void __launch_bounds__(kWarp) PlacesKernel(const SlotsArgs a) {
  __shared__ int next[kMostExperts];
  BeginKernel();
  const int lane = static_cast<int>(threadIdx.x), begin = static_cast<int>(blockIdx.x) * kTile,
            end = min(begin + kTile, a.pairs);
  for (int e = lane; e < a.experts; e += kWarp)
    next[e] = a.counts[static_cast<int>(blockIdx.x) * a.experts + e];
  __syncwarp();
  for (int i0 = begin; i0 < end; i0 += kWarp) {
    const int i = i0 + lane;
    const int expert = i < end ? a.ids[i] : -1;
    const unsigned equal = __match_any_sync(kAll, expert);
    const int before = __popc(equal & ((1u << lane) - 1));
    const int slot = expert < 0 ? 0 : next[expert] + before;
    __syncwarp();
    if (expert >= 0) {
      a.slots[i] = slot;
      a.pair_of[slot] = i;
      if (before == 0) next[expert] += __popc(equal);
    }
    __syncwarp();
  }
}

}  // namespace

void LaunchExpertSlots(const SlotsArgs& args, const Launch& launch) {
  const auto tiles = static_cast<unsigned>(args.tiles);
  if (tiles > 0) LaunchKernel(launch, tiles, kCountThreads, 0, CountKernel, args);
  LaunchKernel(launch, 1, kMostExperts, 0, BeginsKernel, args);
  if (tiles > 0) LaunchKernel(launch, tiles, kWarp, 0, PlacesKernel, args);
}

}  // namespace millrace::cuda
