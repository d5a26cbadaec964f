// Walking over a flat view by packs: how many blocks, and which packs a thread takes.
#pragma once

#include <algorithm>

#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/views.h"

namespace millrace::cuda {

inline constexpr int kFlatThreads = 256;
// Packs that a thread loads before it uses the first.
inline constexpr int kFlatUnroll = 4;
inline constexpr int64_t kFlatBlockPacks = int64_t{kFlatThreads} * kFlatUnroll;

inline unsigned FlatBlocks(int64_t n) { return static_cast<unsigned>(CeilDiv(Packs(n), kFlatBlockPacks)); }

// First element of this thread's u-th pack: neighbours in a warp are neighbours in memory.
__device__ __forceinline__ int64_t FlatBegin(int u) {
  return (int64_t{blockIdx.x} * kFlatBlockPacks + u * kFlatThreads + threadIdx.x) * kPack;
}

// Elements from `at` on, as the pack functions take them.
__device__ __forceinline__ int Left(int64_t n, int64_t at) {
  return n - at < kPack ? static_cast<int>(n - at) : kPack;
}

}  // namespace millrace::cuda
