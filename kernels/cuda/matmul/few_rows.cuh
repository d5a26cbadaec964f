// What kernels of few rows on wgmma share: the weight's lines are the rows of its tiles, and the
// rows its columns, of which it takes as few as eight.
#pragma once

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/rows.h"

namespace millrace::cuda {

__device__ __forceinline__ uint32_t* PairAt(const Rows& rows, int row, int column) {
  return reinterpret_cast<uint32_t*>(reinterpret_cast<uint16_t*>(rows.data) + row * rows.stride +
                                     column);
}
__device__ __forceinline__ float LowOf(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float HighOf(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// What two neighbours of a row become; what goes into a GELU is stored. g: with bias, pre, out and
// gelu, as FewRowsArgs has them.
template <class Args>
__device__ __forceinline__ uint32_t FinishedPair(const Args& g, int row, int column, float low,
                                                 float high, uint32_t bias) {
  if (g.bias.data != nullptr)
    low = __fadd_rn(low, LowOf(bias)), high = __fadd_rn(high, HighOf(bias));
  uint32_t pair = PairOfBF16(low, high);
  if (g.gelu) {
    // As an activation that reads the stored value (elementwise/activation.cu).
    if (g.pre.data != nullptr) *PairAt(g.pre, row, column) = pair;
    pair = PairOfBF16(Activate<ActivationKind::kGelu>(LowOf(pair), 0.0f),
                      Activate<ActivationKind::kGelu>(HighOf(pair), 0.0f));
  }
  return pair;
}
template <class Args>
__device__ __forceinline__ void StorePair(const Args& g, int row, int column, float low, float high,
                                          uint32_t bias) {
  *PairAt(g.out, row, column) = FinishedPair(g, row, column, low, high, bias);
}

// Into the second cache, where whoever writes weights meanwhile would find them: this is no access
// to memory in the sense of BeginKernel. By a block of kThreads: of `count` lines of a weight from
// `first` on elements [from, to).
template <int kThreads>
__device__ __forceinline__ void PrefetchLines(const Rows& weight, int first, int count, int from,
                                              int to) {
  constexpr int kCacheLine = 64;  // elements
  const int pieces = (to - from + kCacheLine - 1) / kCacheLine;
  for (int i = static_cast<int>(threadIdx.x); i < count * pieces; i += kThreads)
    asm volatile("prefetch.global.L2 [%0];"
                 :
                 : "l"(reinterpret_cast<const uint16_t*>(weight.data) +
                       (first + i / pieces) * weight.stride + from + i % pieces * kCacheLine));
}

}  // namespace millrace::cuda
