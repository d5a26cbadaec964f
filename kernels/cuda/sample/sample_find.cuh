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
                     kSampleBins = 2048, kSampleList = 1024;
using Amount = unsigned long long;

// How many neighbouring ids a warp of `blocks` blocks has.
__host__ __device__ inline int SampleIdsOfWarp(int vocab, int blocks) {
  const int warps = blocks * kSampleWarps;
  return (vocab + warps - 1) / warps;
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
  const float y = __fdiv_rn(__fsub_rn(max, logit), temperature);
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
  // `staged` has room for a block's part of the row, or is null.
  __device__ SampleRow(const std::byte* data, bool bf16, int vocab, SampleShared& shared,
                       float* staged)
      : cluster_(cooperative_groups::this_cluster()),
        data_(data),
        bf16_(bf16),
        shared_(shared),
        staged_(staged),
        block_(static_cast<int>(cluster_.block_rank())),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp) {
    // Neighbouring ids to a warp, so that ties are counted in their order.
    const int each = SampleIdsOfWarp(vocab, kBlocks), index = block_ * kSampleWarps + warp_;
    begin_ = static_cast<int>(min(int64_t{each} * index, int64_t{vocab}));
    end_ = min(begin_ + each, vocab);
    base_ = each * block_ * kSampleWarps;
  }

  __device__ bool first() const { return block_ == 0; }
  __device__ void Sync() { cluster_.sync(); }
  __device__ __forceinline__ float InMemory(int v) const { return Load(data_, bf16_, v); }

  // Reads the row. The largest and least logit; true: one is not finite.
  __device__ bool Begin(float& largest, float& least) {
    constexpr int kAhead = 8;
    const std::byte* const data = data_;
    const bool bf16 = bf16_;
    const int end = end_;
    float* const staged = staged_ != nullptr ? staged_ - base_ : nullptr;
    float most = -INFINITY, fewest = INFINITY;
    bool bad = false;
#pragma unroll 1
    for (int at = begin_ + lane_; at < end; at += kAhead * kWarp) {
      float x[kAhead];
#pragma unroll
      for (int n = 0; n < kAhead; ++n) x[n] = Load(data, bf16, min(at + n * kWarp, end - 1));
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        bad |= !isfinite(x[n]);
        most = fmaxf(most, x[n]), fewest = fminf(fewest, x[n]);
        if (staged != nullptr && at + n * kWarp < end) staged[at + n * kWarp] = x[n];
      }
    }
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
    Amount own = 0;
    if (first()) {
      for (int i = static_cast<int>(threadIdx.x); i < kSampleBins; i += kSampleThreads)
        own += shared.merged[i];
      SumBefore(own);
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
    if (first()) Collect(count);
  }
  __device__ Amount Listed(int i) const { return shared_.list[i]; }

  // As Find, the first token of those with this logit.
  __device__ void FirstOf(float logit) {
    int least = INT_MAX;
    ForOwn([&](float x, int v) {
      if (x == logit) least = min(least, v);
    });
    least = __reduce_min_sync(0xffffffffu, least);
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

  // f(logit, id) of this thread's tokens.
  template <class F>
  __device__ __forceinline__ void ForOwn(F&& f) const {
    const int end = end_;
    if (staged_ != nullptr) {
      const float* const staged = staged_ - base_;
#pragma unroll 4
      for (int at = begin_ + lane_; at < end; at += kWarp) f(staged[at], at);
      return;
    }
    constexpr int kAhead = 8;
    const std::byte* const data = data_;
    const bool bf16 = bf16_;
#pragma unroll 1
    for (int at = begin_ + lane_; at < end; at += kAhead * kWarp) {
      float x[kAhead];
#pragma unroll
      for (int n = 0; n < kAhead; ++n) x[n] = Load(data, bf16, min(at + n * kWarp, end - 1));
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
    Sync();
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
      constexpr int kEach = kSampleBins / kSampleThreads;
      const int begin = static_cast<int>(threadIdx.x) * kEach;
      Amount own = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) own += shared_.merged[begin + i];
      Amount before = ahead + SumBefore(own);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
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

  // The blocks' lists, `count` tokens in all, in the first block's, in order. Called by the first
  // block; the others wait in the next Sync.
  __device__ __noinline__ void Collect(int count) {
    int at = shared_.shown.count;
#pragma unroll 1
    for (int b = 1; b < kBlocks; ++b) {
      const int others = Of(b).shown.count;
      for (int i = static_cast<int>(threadIdx.x); i < others; i += kSampleThreads)
        shared_.list[at + i] = Of(b).list[i];
      at += others;
    }
    int size = 2;
    while (size < count) size *= 2;
    for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kSampleThreads)
      shared_.list[i] = 0;  // behind all places
    // Of pairs up to 32 apart a warp has the same 64 elements in each turn.
    bool crossed = true;
#pragma unroll 1
    for (int run = 2; run <= size; run *= 2)
#pragma unroll 1
      for (int step = run / 2; step > 0; step /= 2) {
        const bool crosses = step > kWarp;
        if (crosses || crossed)
          __syncthreads();
        else
          __syncwarp();
        crossed = crosses;
        const int p = static_cast<int>(threadIdx.x);
        static_assert(kSampleList / 2 <= kSampleThreads);
        if (p >= size / 2) continue;
        const int i = (p & -step) * 2 + (p & (step - 1)), j = i + step;
        const Amount a = shared_.list[i], b = shared_.list[j];
        if ((a < b) == ((i & run) == 0)) shared_.list[i] = b, shared_.list[j] = a;
      }
    __syncthreads();
  }

  // Of the first block.
  __device__ __noinline__ void OfList(int count, Amount ahead, Amount target,
                                      const Amounts amounts) {
    Collect(count);
    constexpr int kEach = kSampleList / kSampleThreads;
    const int begin = static_cast<int>(threadIdx.x) * kEach;
    Amount of[kEach], own = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      of[i] = begin + i < count ? amounts.Of(LogitOf(shared_.list[begin + i])) : 0;
      own += of[i];
    }
    Amount before = ahead + SumBefore(own);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (before <= target && target < before + of[i])
        shared_.found.place = shared_.list[begin + i], shared_.found.through = before + of[i];
      before += of[i];
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
  const std::byte* data_;
  bool bf16_;
  SampleShared& shared_;
  float* staged_;
  int block_, warp_, lane_, begin_, end_, base_;
  Amount block_total_ = 0;
};

}  // namespace millrace::cuda
