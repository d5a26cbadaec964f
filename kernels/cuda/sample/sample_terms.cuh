// What a draw on a GPU is made of: places of tokens in a row's order, their weights, bins of
// logits, and what a block keeps of a row. sample_find.cuh finds places with them.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/sample/sample_launch.h"

namespace millrace::cuda {

inline constexpr int kSampleThreads = 512, kSampleWarps = kSampleThreads / kWarp,
                     kSampleBins = 2048, kSampleList = kSampleThreads, kSampleMostBlocks = 16;
using Amount = unsigned long long;

// How many neighbouring ids a warp of `blocks` blocks has: whole packs.
__host__ __device__ inline int SampleIdsOfWarp(int vocab, int blocks) {
  const int warps = blocks * kSampleWarps * kPack;
  return (vocab + warps - 1) / warps * kPack;
}

// As OrderedKey of kernels/ops/sample_row.cc.
__device__ __forceinline__ uint32_t KeyOf(float x) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float OfKey(uint32_t key) {
  return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key);
}
// Falls along the order; never 0.
__device__ __forceinline__ Amount PlaceOf(float logit, int id) {
  return Amount{KeyOf(logit)} << 32 | static_cast<uint32_t>(~id);
}
__device__ __forceinline__ int IdOf(Amount place) { return ~static_cast<int>(place); }
__device__ __forceinline__ float LogitOf(Amount place) {
  return OfKey(static_cast<uint32_t>(place >> 32));
}

// As SampleWeight there.
__device__ __forceinline__ Amount WeightOf(float max, float logit, float temperature) {
  float y = __fsub_rn(max, logit);
  if (temperature != 1) y = __fdiv_rn(y, temperature);
  if (!(y < 28.0f)) return 0;
  const float n = rintf(__fmul_rn(y, 1.44269502f));
  const float s = __fmaf_rn(n, -2.12194440e-4f, __fmaf_rn(n, 0.693359375f, -y));
  float e = 1.0f / 5040.0f;
  e = __fmaf_rn(e, s, 1.0f / 720.0f);
  e = __fmaf_rn(e, s, 1.0f / 120.0f);
  e = __fmaf_rn(e, s, 1.0f / 24.0f);
  e = __fmaf_rn(e, s, 1.0f / 6.0f);
  e = __fmaf_rn(e, s, 0.5f);
  e = __fmaf_rn(e, s, 1.0f);
  e = __fmaf_rn(e, s, 1.0f);
  return static_cast<Amount>(static_cast<uint32_t>(__fmul_rn(e, 0x1p30f))) << 10 >>
         static_cast<uint32_t>(n);
}

// A block's, and what the cluster's other blocks see of it.
struct SampleShared {
  union {
    struct {
      uint32_t low[kSampleBins], high[kSampleBins];  // amounts by bin, of 64 bits
    };
    Amount
        amount[2 * kSampleList];  // the first block's: of its lists' tokens, when bins are merged
  };
  Amount list[2 * kSampleList];  // places of gathered tokens: one list, or two
  Amount merged[kSampleBins];    // of the whole row, in each block
  Amount of_warp[kSampleWarps];
  double sums[kSampleWarps];
  uint32_t most[kSampleMostBlocks * kSampleWarps];    // keys, by warp of the cluster
  uint32_t fewest[kSampleMostBlocks * kSampleWarps];  // these, too
  struct {
    Amount amount;
    double sum;
    int count, others;  // in the first list, and in the second
  } shown;
  // The first block's answers, and what each block finds for itself.
  struct {
    Amount ahead, target, through, place;
    int bin;
  } found;
  struct {
    Amount ahead;
    int first, last;
  } drawn;
  double log_sum;  // the first block's
};

// Equal parts of [least, largest].
struct Cut {
  float largest, least, factor, scale;

  __device__ Cut(float most, float fewest) : largest(most), least(fewest) {
    factor = isinf(__fsub_rn(most, fewest)) ? 0.5f : 1.0f;
    scale = __fdiv_rn(static_cast<float>(kSampleBins - 1), Above(fewest));
  }
  __device__ __forceinline__ float Above(float logit) const {
    return __fsub_rn(__fmul_rn(largest, factor), __fmul_rn(logit, factor));
  }
  // Falls as the logit rises; -1: outside. The largest is in bin 0; the least is not, unless it is
  // the largest.
  __device__ __forceinline__ int Bin(float logit) const {
    if (!(logit <= largest && logit >= least)) return -1;
    return min(static_cast<int>(__fmul_rn(Above(logit), scale)), kSampleBins - 1);
  }
};

// Amounts of tokens: the weights that draws go by, or one each.
struct Amounts {
  float largest, temperature;
  bool ones;
  __device__ __forceinline__ Amount Of(float logit) const {
    return ones ? 1 : WeightOf(largest, logit, temperature);
  }
};

}  // namespace millrace::cuda
