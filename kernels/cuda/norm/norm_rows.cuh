// How threads share a row of a norm, and the sums that they form together.
#pragma once

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/pack.cuh"

namespace millrace::cuda {

// Waits for the kThreads threads of one of a block's groups, which are numbered from 1: 0 is
// __syncthreads. Number and threads stand in the instruction, not in a register: racecheck counts
// arrivals there as arrivals at other barriers, too, and reports what those keep apart.
template <int kThreads, int kLast, int kNumber = 1>
__device__ __forceinline__ void SyncGroup(int number) {
  if constexpr (kNumber < kLast) {
    if (number != kNumber) {
      SyncGroup<kThreads, kLast, kNumber + 1>(number);
      return;
    }
  }
  asm volatile("bar.sync %0, %1;" : : "n"(kNumber), "n"(kThreads) : "memory");
}

// A group is the `warps` warps that share a row.
struct Group {
  int index;  // of the block's groups
  int count;  // groups per block
  int warps;
  int thread;  // in the group
  int threads;

  __device__ explicit Group(int row_warps) : Group(row_warps, static_cast<int>(blockDim.x)) {}
  // Of the block's first `of_threads` threads.
  __device__ Group(int row_warps, int of_threads)
      : index(static_cast<int>(threadIdx.x) / (row_warps * kWarp)),
        count(of_threads / (row_warps * kWarp)),
        warps(row_warps),
        thread(static_cast<int>(threadIdx.x) % (row_warps * kWarp)),
        threads(row_warps * kWarp) {}
  // First column of this thread's k-th pack.
  __device__ int column(int k) const { return (thread + k * threads) * kPack; }
  // Waits for the group's threads alone. Where groups of several warps share a block, it has eight
  // warps.
  __device__ void Sync() const {
    if (count == 1)
      __syncthreads();
    else if (warps == 2)
      SyncGroup<2 * kWarp, 4>(index + 1);
    else
      SyncGroup<4 * kWarp, 2>(index + 1);
  }
};

// v[n] = its sum over the group, the same bits in all its threads: lanes as WarpSum, then warps in
// order. Every thread of the group calls it, with turn = 0, 1, 0, 1, ...: a turn's values have been
// read by all when the next turn's barrier opens. G: Group, or one that waits in another way.
template <int N, class G>
__device__ __forceinline__ void GroupSum(double (&v)[N], const G& group, int turn) {
#pragma unroll
  for (int n = 0; n < N; ++n) v[n] = WarpSum(v[n]);
  if (group.warps == 1) return;
  __shared__ double of_warp[2][N][32];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x % kWarp == 0) {
#pragma unroll
    for (int n = 0; n < N; ++n) of_warp[turn][n][warp] = v[n];
  }
  group.Sync();
  const int first = group.index * group.warps;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    v[n] = of_warp[turn][n][first];
    for (int w = 1; w < group.warps; ++w) v[n] = __dadd_rn(v[n], of_warp[turn][n][first + w]);
  }
}

// f.operator()<E, P>() for the elements and the packs per thread.
template <class F>
void DispatchRows(Elements elements, int packs, F&& f) {
  const auto with_packs = [&]<Elements E>() {
    switch (packs) {
      case 1:
        return f.template operator()<E, 1>();
      case 2:
        return f.template operator()<E, 2>();
      case 3:
        return f.template operator()<E, 3>();
      default:
        return f.template operator()<E, 4>();
    }
  };
  WithElements(elements, with_packs);
}

}  // namespace millrace::cuda
