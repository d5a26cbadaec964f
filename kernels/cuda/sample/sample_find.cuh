// How a cluster of blocks finds a place in a row's order of tokens (kernels/ops/sample_ops.h)
// without sorting the row.
//
// Logits are cut evenly into bins between the largest and the least; what each bin's tokens amount
// to says in which one a place lies. Its tokens, a few hundred of a hundred thousand, are gathered
// and sorted. Where they are too many, the bin is cut again; where all are equal, they are counted.
// Amounts are integers: no order of additions changes one.
//
// Time goes into barriers of the cluster (0.8 us each on an H100) and what one block does while the
// others wait, not into cold code. What nearly all draws run is one piece without calls, of
// registers, with five barriers; what few do is called with a row of its own (a copy), or the row
// would lie in memory for all.
#pragma once

#include <cooperative_groups.h>

#include <climits>
#include <cmath>

#include "kernels/cuda/sample/sample_terms.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {

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
  // Sync() in two, with work between them that no other thread waits for.
  __device__ __forceinline__ void Arrive() {
    asm volatile("barrier.cluster.arrive.aligned;" : : : "memory");
  }
  __device__ __forceinline__ void Wait() {
    asm volatile("barrier.cluster.wait.aligned;" : : : "memory");
  }

  // Ahead of the wait for the kernel before, as it touches shared memory alone: bins are empty, and
  // the cluster's other blocks learn that this one runs.
  static __device__ __forceinline__ void Prepare(SampleShared& shared) {
    for (int b = static_cast<int>(threadIdx.x); b < kSampleBins; b += kSampleThreads)
      shared.low[b] = shared.high[b] = 0;
    if (threadIdx.x == 0) shared.shown.count = shared.shown.others = 0;
    asm volatile("barrier.cluster.arrive.aligned;" : : : "memory");
  }
  __device__ __forceinline__ float InMemory(int v) const { return Load(data_, bf16_, v); }

  // Reads the row. The largest and least logit; true: one is not finite.
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
      constexpr int kAhead = 16;
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
    Wait();  // Prepare's: all blocks run
    return Extremes(largest, least, bad);
  }

  // The sum of exponentials of logits less the largest, for SumOfBlocks.
  __device__ __noinline__ void SumExponentials(float largest) {
    float sum = 0;
    ForOwn([largest, &sum](float x, int) { sum += Exponential(x, largest); });
    SumOfWarp(sum);
    __syncthreads();
    ShowSum();
  }
  // Of all blocks' sums, in their order, to the first block: behind a Sync() that follows them. The
  // second one has time for it while the first looks for the token.
  __device__ __forceinline__ void ShowLogSum(float largest) {
    if (block_ != 1 || threadIdx.x > 0) return;
    double all = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) all = __dadd_rn(all, Of(b).shown.sum);
    Of(0).log_sum = static_cast<double>(largest) + log(all);
  }
  __device__ double log_sum() const { return shared_.log_sum; }

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

  // Amounts by bin of a cut of all tokens, for Find; returns their sum. With `exponentials` what
  // SumExponentials does but the last of it, ShowSum, in the same pass. kEmpty: bins are as Prepare
  // left them.
  template <bool kEmpty>
  __device__ __forceinline__ Amount Fill(const Cut cut, const Amounts amounts, bool exponentials) {
    SampleShared& shared = shared_;
    if constexpr (!kEmpty) {
      __syncthreads();  // amounts may still be read
      for (int b = static_cast<int>(threadIdx.x); b < kSampleBins; b += kSampleThreads)
        shared.low[b] = shared.high[b] = 0;
      __syncthreads();
    }
    float sum = 0;
    constexpr int kAhead = 4;
    ForOwnBatches<kAhead>([&](const float(&x)[kAhead], int at) {
      Amount amount[kAhead];
      int bin[kAhead];
      uint32_t old[kAhead];
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        const bool own = at + n * kWarp < end_;
        if (exponentials && own) sum += Exponential(x[n], cut.largest);
        bin[n] = cut.Bin(x[n]);
        amount[n] = own && bin[n] >= 0 ? amounts.Of(x[n]) : 0;
      }
      // An addition of 64 bits in two, of which each is one instruction.
#pragma unroll
      for (int n = 0; n < kAhead; ++n)
        if (amount[n] > 0)
          old[n] = atomicAdd(&shared.low[bin[n]], static_cast<uint32_t>(amount[n]));
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        if (amount[n] == 0) continue;
        const uint32_t high = static_cast<uint32_t>(amount[n] >> 32) +
                              (old[n] + static_cast<uint32_t>(amount[n]) < old[n]);
        if (high > 0) atomicAdd(&shared.high[bin[n]], high);
      }
    });
    Arrive();
    if (exponentials) SumOfWarp(sum);  // for ShowSum
    Wait();
    // Each block adds its share of the bins, for all.
    constexpr int kShare = kSampleBins / kBlocks;
    for (int i = block_ * kShare + static_cast<int>(threadIdx.x); i < (block_ + 1) * kShare;
         i += kSampleThreads) {
      Amount all = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) all += (Amount{Of(b).high[i]} << 32) + Of(b).low[i];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) Of(b).merged[i] = all;
    }
    Sync();
    Amount own = 0;
#pragma unroll
    for (int i = 0; i < kBinsOfThread; ++i)
      own += shared.merged[static_cast<int>(threadIdx.x) * kBinsOfThread + i];
    bins_before_ = SumBefore(own);
    return block_total_;
  }
  // shown.sum = the block's sum, behind a barrier that follows SumOfWarp.
  __device__ __forceinline__ void ShowSum() {
    if (warp_ > 0) return;
    const double all = WarpSum(lane_ < kSampleWarps ? shared_.sums[lane_] : 0.0);
    if (lane_ == 0) shared_.shown.sum = all;
  }

  // Of weights that Fill has left by bin: the token of the draw `random` from the fewest first
  // tokens whose weights add to `reached` + 1 or more, or from all (cuts is false): place() is its
  // place. What these weigh is known to a bin before any token is looked at, and so is, almost
  // always, the bin that the draw lies in: the tokens of both are gathered at once. False: they are
  // too many for that.
  __device__ __forceinline__ bool FindDraw(const Cut cut, const Amounts weights, bool cuts,
                                           Amount reached, Amount random) {
    SampleShared& shared = shared_;
    Amount least = block_total_, most = block_total_, ahead = 0;  // what the fewest weigh
    int last = -1;
    if (cuts) {
      PickOwn(0, reached);
      last = shared.found.bin, ahead = shared.found.ahead;
      least = reached + 1, most = ahead + shared.merged[last];
    }
    const Amount low = __umul64hi(random, least), high = __umul64hi(random, most);
    Amount before = bins_before_;
#pragma unroll
    for (int i = 0; i < kBinsOfThread; ++i) {
      const int bin = static_cast<int>(threadIdx.x) * kBinsOfThread + i;
      const Amount here = shared.merged[bin];
      if (before <= low && low < before + here)
        shared.drawn.first = bin, shared.drawn.ahead = before;
      if (before <= high && high < before + here) shared.drawn.last = bin;
      before += here;
    }
    __syncthreads();
    const int from = shared.drawn.first, to = shared.drawn.last;
    ShowSum();
    constexpr int kAhead = 8;
    ForOwnBatches<kAhead>([&](const float(&x)[kAhead], int at) {
      uint32_t found = 0;  // a bit for each
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        const int bin = cut.Bin(x[n]);
        found |= uint32_t{(bin >= from && bin <= to) || bin == last} << n;
      }
      for (; found != 0; found &= found - 1) {  // few have one
        const int v = at + (__ffs(static_cast<int>(found)) - 1) * kWarp;
        if (v >= end_) break;
        const float logit = Load(near_, bf16_, v);
        const int bin = cut.Bin(logit);
        const bool is_drawn = bin >= from && bin <= to;
        const int place = atomicAdd(is_drawn ? &shared.shown.count : &shared.shown.others, 1);
        if (place < kSampleList)
          shared.list[is_drawn ? place : kSampleList + place] = PlaceOf(logit, v);
      }
    });
    Sync();
    int count = 0, others = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) count += Of(b).shown.count, others += Of(b).shown.others;
    if (max(count, others) > kSampleList) {
      Sync();  // all have read the counts
      return false;
    }
    if (!first()) return true;
    CollectBoth(count, others, weights);
    const bool apart = last < from || last > to;
    if (cuts) {
      OfList(apart ? kSampleList : 0, apart ? others : count, apart ? ahead : shared.drawn.ahead,
             reached, weights);
      most = shared.found.through;
      __syncthreads();  // all have read it
    }
    OfList(0, count, shared.drawn.ahead, __umul64hi(random, most), weights);
    return true;
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
        if (first()) {
          Collect(count, amounts);
          OfList(0, count, ahead, target, amounts);
        }
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
      Fill<false>(cut, amounts, false);
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
    const auto [place, before] = OfThread(0, count);
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
  // The first part of the block's sum, in a fixed order.
  __device__ __forceinline__ void SumOfWarp(float own) {
    const double of_warp = WarpSum(static_cast<double>(own));
    if (lane_ == 0) shared_.sums[warp_] = of_warp;
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

  // f(logits, id of the first) of this thread's tokens, some at a time, a warp apart; ids from end_
  // on are nobody's.
  template <int kAhead, class F>
  __device__ __forceinline__ void ForOwnBatches(F&& f) const {
    const int end = end_;
#pragma unroll 1
    for (int at = begin_ + lane_; at < end; at += kAhead * kWarp) {
      float x[kAhead];
#pragma unroll
      for (int n = 0; n < kAhead; ++n) x[n] = Load(near_, bf16_, min(at + n * kWarp, end - 1));
      f(x, at);
    }
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

  // largest, least: those of the cluster. True: `bad` is in some thread. Each warp tells all
  // blocks.
  __device__ __forceinline__ bool Extremes(float& largest, float& least, bool bad) {
    constexpr uint32_t kBad = 0xffffffffu;  // above the keys of all numbers
    uint32_t most = __reduce_max_sync(0xffffffffu, bad ? kBad : KeyOf(largest)),
             fewest = __reduce_min_sync(0xffffffffu, KeyOf(least));
    if (lane_ < kBlocks) {
      Of(lane_).most[block_ * kSampleWarps + warp_] = most;
      Of(lane_).fewest[block_ * kSampleWarps + warp_] = fewest;
    }
    Sync();
#pragma unroll
    for (int i = 0; i < kBlocks * kSampleWarps; i += kWarp) {
      most = max(most, shared_.most[i + lane_]);
      fewest = min(fewest, shared_.fewest[i + lane_]);
    }
    most = __reduce_max_sync(0xffffffffu, most), fewest = __reduce_min_sync(0xffffffffu, fewest);
    largest = OfKey(most), least = OfKey(fewest);
    return most == kBad;
  }

  // The sum of lower threads' numbers in the block, and block_total_.
  __device__ __forceinline__ Amount SumBefore(Amount v) {
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
  __device__ __forceinline__ void PickOwn(Amount ahead, Amount target) {
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
    __syncthreads();
  }
  // For all, of a target that the first block knows.
  __device__ void Pick(Amount ahead, Amount target) {
    if (first()) PickOwn(ahead, target);
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

  // The same of two lists.
  __device__ __forceinline__ void CollectBoth(int count, int others, const Amounts amounts) {
    const int i = static_cast<int>(threadIdx.x);
    Amount place = 0, other = 0;
    int begin = 0, second = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int here = Of(b).shown.count, there = Of(b).shown.others;
      if (i >= begin && i < begin + here) place = Of(b).list[i - begin];
      if (i >= second && i < second + there) other = Of(b).list[kSampleList + i - second];
      begin += here, second += there;
    }
    __syncthreads();  // of this block's lists, all are read
    if (i < count) {
      shared_.list[i] = place;
      shared_.amount[i] = amounts.Of(LogitOf(place));
    }
    if (i < others) {
      shared_.list[kSampleList + i] = other;
      shared_.amount[kSampleList + i] = amounts.Of(LogitOf(other));
    }
    __syncthreads();
  }

  struct ListedToken {
    Amount place, before;  // what the tokens ahead of it amount to; place 0: none
  };
  // Behind Collect: a token of [begin, begin + count) of the list to a thread, to some none.
  __device__ __forceinline__ ListedToken OfThread(int begin, int count) {
    // Several threads to a token, as many as there are for all; the first of them has it.
    int threads = 1;
    while (threads < 8 && 2 * threads * count <= kSampleThreads) threads *= 2;
    const int i = static_cast<int>(threadIdx.x) / threads,
              part = static_cast<int>(threadIdx.x) & (threads - 1);
    const Amount place = i < count ? shared_.list[begin + i] : ~Amount{0};
    Amount before = 0;
#pragma unroll 4
    for (int other = begin + part; other < begin + count; other += threads)
      if (shared_.list[other] > place) before += shared_.amount[other];
    for (int other = threads / 2; other > 0; other /= 2)
      before += __shfl_xor_sync(0xffffffffu, before, other);
    return {i < count && part == 0 ? place : 0, before};
  }

  // Of the first block, behind Collect, of [begin, begin + count) of its list.
  __device__ __forceinline__ void OfList(int begin, int count, Amount ahead, Amount target,
                                         const Amounts amounts) {
    const ListedToken own = OfThread(begin, count);
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
  Amount bins_before_ = 0;  // of Fill: of all bins ahead of this thread's
};

}  // namespace millrace::cuda
