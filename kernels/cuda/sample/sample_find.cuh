// How a cluster of blocks finds a place in a row's order of tokens (kernels/ops/sample_ops.h)
// without sorting the row.
//
// Logits are cut evenly into bins between the largest and the least; what each bin's tokens amount
// to says in which one a place lies. Its tokens, a few hundred of a hundred thousand, are gathered
// and sorted. Where they are too many, the bin is cut again; where all are equal, they are counted.
// Amounts are integers: no order of additions changes one.
//
// Code is kept short: a step that generates runs it once, and weights have driven it out of the
// caches since.
#pragma once

#include <cooperative_groups.h>

#include <climits>
#include <cmath>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/sample/sample_launch.h"

namespace millrace::cuda {

inline constexpr int kSampleThreads = 512, kSampleWarps = kSampleThreads / kWarp,
                     kSampleBins = 2048, kSampleList = kSampleThreads;
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
  uint32_t low[kSampleBins], high[kSampleBins];  // amounts by bin, of 64 bits
  Amount list[kSampleList];                      // places of gathered tokens
  Amount amount[kSampleList];                    // the first block's: of its list's tokens
  Amount merged[kSampleBins];                    // the first block's: of the whole row
  Amount of_warp[kSampleWarps];
  double sums[kSampleWarps];
  float largest[kSampleWarps], least[kSampleWarps];
  struct {
    Amount amount;
    double sum;
    float largest, least;
    int count;
  } shown;
  // The first block's answers.
  struct {
    Amount ahead, target, through, place;
    int bin;
  } found;
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

// All threads of a cluster of kBlocks blocks call each function.
template <int kBlocks>
class SampleRow {
 public:
  // `staged` has room for a block's part of the row as it lies in memory, or is null.
  __device__ SampleRow(const std::byte* data, bool bf16, bool wide, int vocab, SampleShared& shared,
                       std::byte* staged)
      : cluster_(cooperative_groups::this_cluster()),
        data_(data),
        near_(data),
        bf16_(bf16),
        wide_(wide),
        shared_(shared),
        block_(static_cast<int>(cluster_.block_rank())),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp) {
    // Neighbouring ids to a warp, so that ties are counted in their order.
    const int each = SampleIdsOfWarp(vocab, kBlocks), index = block_ * kSampleWarps + warp_;
    begin_ = static_cast<int>(min(int64_t{each} * index, int64_t{vocab}));
    end_ = min(begin_ + each, vocab);
    if (staged != nullptr) near_ = staged - int64_t{each} * block_ * kSampleWarps * (bf16 ? 2 : 4);
  }

  __device__ bool first() const { return block_ == 0; }
  __device__ void Sync() { cluster_.sync(); }
  __device__ __forceinline__ float InMemory(int v) const { return Load(data_, bf16_, v); }

  // Reads the row. The largest and least logit; true: one is not finite. Another Sync() has to
  // come before shown.count is written again.
  __device__ bool Begin(float& largest, float& least) {
    float most = -INFINITY, fewest = INFINITY;
    bool bad = false;
    const auto look = [&](float x) {
      bad |= !isfinite(x);
      most = fmaxf(most, x), fewest = fminf(fewest, x);
    };
    const std::byte* const data = data_;
    const bool stages = near_ != data;
    const int end = end_;
    if (wide_) {
      constexpr int kAhead = 8;
      std::byte* const to = const_cast<std::byte*>(near_);
#pragma unroll 1
      for (int begin = begin_ + lane_ * kPack; begin < end; begin += kAhead * kWarp * kPack) {
        uint4 raw[kAhead];
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
          const int at = begin + n * kWarp * kPack;
          if (at < end) raw[n] = *reinterpret_cast<const uint4*>(data + int64_t{at} * 2);
        }
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
          const int at = begin + n * kWarp * kPack;
          if (at >= end) break;
          if (stages) *reinterpret_cast<uint4*>(to + int64_t{at} * 2) = raw[n];
          const uint32_t words[4] = {raw[n].x, raw[n].y, raw[n].z, raw[n].w};
#pragma unroll
          for (int i = 0; i < kPack; ++i)
            if (at + i < end)
              look(__uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u));
        }
      }
    } else {
      constexpr int kAhead = 8;
      const bool bf16 = bf16_;
#pragma unroll 1
      for (int at = begin_ + lane_; at < end; at += kAhead * kWarp) {
        float x[kAhead];
#pragma unroll
        for (int n = 0; n < kAhead; ++n) x[n] = Load(data, bf16, min(at + n * kWarp, end - 1));
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
          look(x[n]);
          if (stages && at + n * kWarp < end) Stage(x[n], at + n * kWarp);
        }
      }
    }
    __syncwarp();
    largest = most, least = fewest;
    return Extremes(largest, least, bad);
  }

  // The sum of exponentials of logits less the largest, for SumOfBlocks.
  __device__ __noinline__ void SumExponentials(float largest) {
    float sum = 0;
    ForOwn([largest, &sum](float x, int) { sum += Exponential(x, largest); });
    ShowSum(sum);
  }
  // In their order. Behind a Sync() by all.
  __device__ double SumOfBlocks() {
    double all = 0;
    for (int b = 0; b < kBlocks; ++b) all = __dadd_rn(all, Of(b).shown.sum);
    return all;
  }

  // In the first block: the sum of weights of tokens at `last` and ahead of it, or not below
  // `least`.
  __device__ __noinline__ Amount Mass(const Amounts amounts, Amount last, Amount least) {
    Amount own = 0;
    ForOwn([&](float x, int v) {
      const Amount weight = amounts.Of(x);
      if (weight >= least && PlaceOf(x, v) >= last) own += weight;
    });
    SumBefore(own);
    if (threadIdx.x == 0) shared_.shown.amount = block_total_;
    Sync();
    Amount all = 0;
    for (int b = 0; b < kBlocks; ++b) all += Of(b).shown.amount;
    Sync();
    return all;
  }

  // Amounts by bin of a cut of all tokens, for Find; in the first block, their sum. With
  // `exponentials` what SumExponentials does, in the same pass.
  __device__ __noinline__ Amount Fill(const Cut cut, const Amounts amounts, bool exponentials) {
    SampleShared& shared = shared_;
    for (int b = static_cast<int>(threadIdx.x); b < kSampleBins; b += kSampleThreads)
      shared.low[b] = shared.high[b] = 0;
    __syncthreads();
    float sum = 0;
    ForOwn([cut, amounts, exponentials, &sum, &shared](float x, int) {
      if (exponentials) sum += Exponential(x, cut.largest);
      const int bin = cut.Bin(x);
      if (bin < 0) return;
      const Amount amount = amounts.Of(x);
      if (amount == 0) return;
      // An addition of 64 bits in two, of which each is one instruction.
      const auto low = static_cast<uint32_t>(amount);
      const uint32_t old = atomicAdd(&shared.low[bin], low),
                     high = static_cast<uint32_t>(amount >> 32) + (old + low < old);
      if (high > 0) atomicAdd(&shared.high[bin], high);
    });
    if (exponentials) ShowSum(sum);
    Sync();
    // Each block adds its share of the bins.
    constexpr int kShare = kSampleBins / kBlocks;
    for (int i = block_ * kShare + static_cast<int>(threadIdx.x); i < (block_ + 1) * kShare;
         i += kSampleThreads) {
      Amount all = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) all += (Amount{Of(b).high[i]} << 32) + Of(b).low[i];
      Of(0).merged[i] = all;
    }
    Sync();
    if (first()) {
      Amount own = 0;
#pragma unroll
      for (int i = 0; i < kBinsOfThread; ++i)
        own += shared.merged[static_cast<int>(threadIdx.x) * kBinsOfThread + i];
      bins_before_ = SumBefore(own);
    }
    return block_total_;
  }

  // The token at which the sum of amounts, in order, is above `target`, which the first block
  // knows: place() is its place, through() what all up to it amount to. Behind
  // Fill(cut, amounts), or another Find behind it of which the bins still stand, as it returns.
  __device__ __noinline__ bool Find(Amount target, Cut cut, const Amounts amounts) {
    Amount ahead = 0;
    for (bool stand = true;; stand = false) {
      Pick(ahead, target);
      const int bin = Of(0).found.bin;
      ahead = Of(0).found.ahead;
      const int count = Gather([cut, bin](float x, int) { return cut.Bin(x) == bin; });
      if (count <= kSampleList) {
        if (first()) OfList(count, ahead, target, amounts);
        return stand;
      }
      target = Of(0).found.target;
      Sync();  // all have read the count
      float largest = -INFINITY, least = INFINITY;
      ForOwn([&](float x, int) {
        if (cut.Bin(x) == bin) largest = fmaxf(largest, x), least = fminf(least, x);
      });
      Extremes(largest, least, false);
      if (largest == least) {
        OfTies(largest, ahead, target, amounts);
        return false;
      }
      cut = Cut(largest, least);
      Fill(cut, amounts, false);
    }
  }
  // In the first block.
  __device__ Amount place() const { return shared_.found.place; }
  __device__ Amount through() const { return shared_.found.through; }
  // In all.
  __device__ Amount PlaceForAll() {
    Sync();
    const Amount place = Of(0).found.place;
    Sync();
    return place;
  }

  // Into the first block's list, in order: the tokens at `last` and ahead of it, which fit.
  __device__ void ListThrough(Amount last) {
    const int count = Gather([last](float x, int v) { return PlaceOf(x, v) >= last; });
    if (!first()) return;
    Collect(count, Amounts{0, 0, true});
    const auto [place, before] = OfThread(count);
    __syncthreads();
    if (place > 0) shared_.list[before] = place;
    __syncthreads();
  }
  __device__ Amount Listed(int i) const { return shared_.list[i]; }

  // As Find, the first token of those with this logit.
  __device__ void FirstOf(float logit) {
    int least = INT_MAX;
    ForOwn([&](float x, int v) {
      if (x == logit) least = min(least, v);
    });
    least = __reduce_min_sync(0xffffffffu, least);
    Sync();  // all have read what Begin showed
    if (threadIdx.x == 0) shared_.shown.count = INT_MAX;
    __syncthreads();
    if (lane_ == 0) atomicMin(&shared_.shown.count, least);
    Sync();
    if (first() && threadIdx.x == 0) {
      for (int b = 0; b < kBlocks; ++b) least = min(least, Of(b).shown.count);
      shared_.found.place = PlaceOf(logit, least);
    }
    __syncthreads();
  }

 private:
  static __device__ __forceinline__ float Load(const std::byte* data, bool bf16, int v) {
    return bf16 ? __uint_as_float(uint32_t{reinterpret_cast<const uint16_t*>(data)[v]} << 16)
                : reinterpret_cast<const float*>(data)[v];
  }
  static __device__ __forceinline__ float Exponential(float logit, float largest) {
    return expf(__fsub_rn(logit, largest));
  }
  // shown.sum = the block's sum, in a fixed order.
  __device__ void ShowSum(float own) {
    const double of_warp = WarpSum(static_cast<double>(own));
    if (lane_ == 0) shared_.sums[warp_] = of_warp;
    __syncthreads();
    if (warp_ > 0) return;
    const double all = WarpSum(lane_ < kSampleWarps ? shared_.sums[lane_] : 0.0);
    if (lane_ == 0) shared_.shown.sum = all;
  }

  __device__ SampleShared& Of(int block) { return *cluster_.map_shared_rank(&shared_, block); }

  // In place of the row's, from now on.
  __device__ __forceinline__ void Stage(float x, int v) {
    std::byte* const to = const_cast<std::byte*>(near_);
    if (bf16_)
      reinterpret_cast<uint16_t*>(to)[v] = static_cast<uint16_t>(__float_as_uint(x) >> 16);
    else
      reinterpret_cast<float*>(to)[v] = x;
  }

  // f(logit, id) of this thread's tokens.
  template <class F>
  __device__ __forceinline__ void ForOwn(F&& f) const {
    constexpr int kAhead = 8;
    const int end = end_;
    const std::byte* const near = near_;
    const bool bf16 = bf16_;
#pragma unroll 1
    for (int at = begin_ + lane_; at < end; at += kAhead * kWarp) {
      float x[kAhead];
#pragma unroll
      for (int n = 0; n < kAhead; ++n) x[n] = Load(near, bf16, min(at + n * kWarp, end - 1));
#pragma unroll
      for (int n = 0; n < kAhead; ++n)
        if (at + n * kWarp < end) f(x[n], at + n * kWarp);
    }
  }

  // largest, least: those of the cluster. True: `bad` is in some thread.
  __device__ __noinline__ bool Extremes(float& largest, float& least, bool bad) {
#pragma unroll
    for (int other = kWarp / 2; other > 0; other /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, other));
      least = fminf(least, __shfl_xor_sync(0xffffffffu, least, other));
    }
    if (lane_ == 0) shared_.largest[warp_] = largest, shared_.least[warp_] = least;
    bad = __syncthreads_or(bad);
    if (warp_ == 0) {
      largest = shared_.largest[lane_ % kSampleWarps], least = shared_.least[lane_ % kSampleWarps];
#pragma unroll
      for (int other = kSampleWarps / 2; other > 0; other /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, other));
        least = fminf(least, __shfl_xor_sync(0xffffffffu, least, other));
      }
    }
    if (threadIdx.x == 0) {
      shared_.shown.largest = largest, shared_.shown.least = least, shared_.shown.count = bad;
    }
    Sync();
    for (int b = 0; b < kBlocks; ++b) {
      largest = fmaxf(largest, Of(b).shown.largest);
      least = fminf(least, Of(b).shown.least);
      bad |= Of(b).shown.count != 0;
    }
    return bad;
  }

  // The sum of lower threads' numbers in the block, and block_total_.
  __device__ __noinline__ Amount SumBefore(Amount v) {
    Amount inclusive = v;
#pragma unroll
    for (int down = 1; down < kWarp; down *= 2) {
      const Amount lower = __shfl_up_sync(0xffffffffu, inclusive, down);
      if (lane_ >= down) inclusive += lower;
    }
    __syncthreads();  // of_warp may still be read
    if (lane_ == kWarp - 1) shared_.of_warp[warp_] = inclusive;
    __syncthreads();
    Amount before = 0, total = 0;
#pragma unroll
    for (int w = 0; w < kSampleWarps; ++w) {
      const Amount of = shared_.of_warp[w];
      if (w < warp_) before += of;
      total += of;
    }
    block_total_ = total;
    return before + inclusive - v;
  }

  // Writes found.bin, that which `target` lies in, and what is ahead of it.
  __device__ void Pick(Amount ahead, Amount target) {
    if (first()) {
      const int begin = static_cast<int>(threadIdx.x) * kBinsOfThread;
      Amount before = ahead + bins_before_;
#pragma unroll
      for (int i = 0; i < kBinsOfThread; ++i) {
        const Amount here = shared_.merged[begin + i];
        if (before <= target && target < before + here) {
          shared_.found.bin = begin + i;
          shared_.found.ahead = before;
          shared_.found.target = target;
        }
        before += here;
      }
    }
    Sync();
  }

  // Tokens that are wanted, into the blocks' lists as far as they fit; how many in all.
  template <class F>
  __device__ __forceinline__ int Gather(F&& wanted) {
    __syncthreads();
    if (threadIdx.x == 0) shared_.shown.count = 0;
    __syncthreads();
    SampleShared& shared = shared_;
    ForOwn([wanted, &shared](float x, int v) {
      if (!wanted(x, v)) return;
      const int at = atomicAdd(&shared.shown.count, 1);
      if (at < kSampleList) shared.list[at] = PlaceOf(x, v);
    });
    Sync();
    int count = 0;
    for (int b = 0; b < kBlocks; ++b) count += Of(b).shown.count;
    return count;
  }

  // The blocks' lists, `count` tokens in all, in the first block's, in no order, with amounts.
  // Called by the first block; the others wait in the next Sync.
  __device__ __noinline__ void Collect(int count, const Amounts amounts) {
    static_assert(kSampleList <= kSampleThreads);
    const int i = static_cast<int>(threadIdx.x);
    int counts[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) counts[b] = Of(b).shown.count;
    int before = 0, block = 0;
#pragma unroll
    for (int b = 0; b + 1 < kBlocks; ++b)
      if (i >= before + counts[b] && block == b) before += counts[b], ++block;
    if (i < count) {
      const Amount place = Of(block).list[i - before];
      if (block > 0) shared_.list[i] = place;
      shared_.amount[i] = amounts.Of(LogitOf(place));
    }
    __syncthreads();
  }

  struct ListedToken {
    Amount place, before;  // what the tokens ahead of it amount to; place 0: none
  };
  // Behind Collect: a token of the list to a thread, to some none.
  __device__ __forceinline__ ListedToken OfThread(int count) {
    // Several threads to a token, as many as there are for all; the first of them has it.
    int threads = 1;
    while (threads < 8 && 2 * threads * count <= kSampleThreads) threads *= 2;
    const int i = static_cast<int>(threadIdx.x) / threads,
              part = static_cast<int>(threadIdx.x) & (threads - 1);
    const Amount place = i < count ? shared_.list[i] : ~Amount{0};
    Amount before = 0;
#pragma unroll 4
    for (int other = part; other < count; other += threads)
      if (shared_.list[other] > place) before += shared_.amount[other];
    for (int other = threads / 2; other > 0; other /= 2)
      before += __shfl_xor_sync(0xffffffffu, before, other);
    return {i < count && part == 0 ? place : 0, before};
  }

  // Of the first block.
  __device__ __noinline__ void OfList(int count, Amount ahead, Amount target,
                                      const Amounts amounts) {
    Collect(count, amounts);
    const ListedToken own = OfThread(count);
    if (own.place > 0) {
      const Amount before = ahead + own.before, through = before + amounts.Of(LogitOf(own.place));
      if (before <= target && target < through)
        shared_.found.place = own.place, shared_.found.through = through;
    }
    __syncthreads();
  }

  // Of tokens that all have this logit, in the order of their ids.
  __device__ __noinline__ void OfTies(float logit, Amount ahead, Amount target,
                                      const Amounts amounts) {
    const Amount each = amounts.Of(logit), nth = (target - ahead) / each;
    Amount own = 0;
    ForOwn([&](float x, int) { own += x == logit; });
#pragma unroll
    for (int other = kWarp / 2; other > 0; other /= 2)
      own += __shfl_xor_sync(0xffffffffu, own, other);
    Amount before = SumBefore(lane_ == 0 ? own : 0);
    before = __shfl_sync(0xffffffffu, before, 0);
    if (threadIdx.x == 0) shared_.shown.amount = block_total_;
    Sync();
    for (int b = 0; b < block_; ++b) before += Of(b).shown.amount;
    if (before <= nth && nth < before + own) {
#pragma unroll 1
      for (int at = begin_; at < end_; at += kWarp) {
        const bool tie = at + lane_ < end_ && InMemory(at + lane_) == logit;
        const uint32_t ties = __ballot_sync(0xffffffffu, tie);
        if (tie && before + __popc(ties & ((1u << lane_) - 1)) == nth) {
          Of(0).found.place = PlaceOf(logit, at + lane_);
          Of(0).found.through = ahead + (nth + 1) * each;
        }
        before += __popc(ties);
      }
    }
    Sync();
  }

  cooperative_groups::cluster_group cluster_;
  static constexpr int kBinsOfThread = kSampleBins / kSampleThreads;

  const std::byte* data_;
  const std::byte* near_;  // where ForOwn reads: data_, or this block's part of it, staged
  bool bf16_, wide_;
  SampleShared& shared_;
  int block_, warp_, lane_, begin_, end_;
  Amount block_total_ = 0;
  Amount bins_before_ = 0;  // of Fill, in the first block: of all bins ahead of this thread's
};

}  // namespace millrace::cuda
