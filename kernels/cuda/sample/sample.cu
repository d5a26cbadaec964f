#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/sample/sample_launch.h"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 1024, kBins = 2048;
using Amount = unsigned long long;

struct Shared {
  Amount bins[kBins];
  Amount of_warp[kWarp];
  double sums[kWarp];
  Amount ahead, total;
  double log_sum;
  float largest[kWarp];
  int bin, id;
  uint32_t top_keys[kMaxSampleTop];
  int top_ids[kMaxSampleTop], top_count;
};

// As OrderedKey of kernels/ops/sample_row.cc, and back.
__device__ __forceinline__ uint32_t KeyOf(float x) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float OfKey(uint32_t key) {
  return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key);
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

// The sum of lower threads' numbers; shared.total is that of all.
__device__ Amount SumBefore(Amount v, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  Amount inclusive = v;
#pragma unroll
  for (int down = 1; down < kWarp; down *= 2) {
    const Amount lower = __shfl_up_sync(0xffffffffu, inclusive, down);
    if (lane >= down) inclusive += lower;
  }
  __syncthreads();  // of_warp and total may still be read
  if (lane == kWarp - 1) shared.of_warp[warp] = inclusive;
  __syncthreads();
  Amount before = 0, total = 0;
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) before += shared.of_warp[w];
    total += shared.of_warp[w];
  }
  if (threadIdx.x == 0) shared.total = total;
  __syncthreads();
  return before + inclusive - v;
}

__device__ Amount SumOfAll(Amount v, Shared& shared) {
  SumBefore(v, shared);
  return shared.total;
}

struct Group {
  uint32_t key;
  Amount ahead, each;
};

// What a block knows of its row.
struct Row {
  const std::byte* data;
  bool bf16;
  int vocab;
  float largest, temperature;

  __device__ __forceinline__ float At(int v) const {
    return bf16 ? __uint_as_float(uint32_t{reinterpret_cast<const uint16_t*>(data)[v]} << 16)
                : reinterpret_cast<const float*>(data)[v];
  }
  __device__ __forceinline__ Amount Weight(float logit) const {
    return WeightOf(largest, logit, temperature);
  }

  // As Find there: a token's amount is its weight, or 1. Additions are of integers, so their order
  // does not matter.
  template <bool kWeights>
  __device__ Group Find(Amount target, Shared& shared) const {
    Group found{0, 0, 0};
    for (int digit = 0; digit < 3; ++digit) {
      const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0, bins = digit == 2 ? 1024 : kBins;
      __syncthreads();
      for (int b = static_cast<int>(threadIdx.x); b < bins; b += kThreads) shared.bins[b] = 0;
      __syncthreads();
      for (int v = static_cast<int>(threadIdx.x); v < vocab; v += kThreads) {
        const float logit = At(v);
        const uint32_t key = KeyOf(logit);
        if (digit > 0 && (key ^ found.key) >> (digit == 1 ? 21 : 10) != 0) continue;
        const Amount amount = kWeights ? Weight(logit) : 1;
        if (amount > 0) atomicAdd(&shared.bins[key >> shift & (bins - 1)], amount);
      }
      __syncthreads();
      const int each = bins / kThreads, first = bins - 1 - static_cast<int>(threadIdx.x) * each;
      const Amount upper = shared.bins[first], lower = each > 1 ? shared.bins[first - 1] : 0;
      const Amount before = found.ahead + SumBefore(upper + lower, shared);
      if (before <= target && target < before + upper + lower) {
        const bool in_lower = target >= before + upper;
        shared.bin = in_lower ? first - 1 : first;
        shared.ahead = in_lower ? before + upper : before;
      }
      __syncthreads();
      found.key |= static_cast<uint32_t>(shared.bin) << shift;
      found.ahead = shared.ahead;
    }
    found.each = kWeights ? Weight(OfKey(found.key)) : 1;
    return found;
  }

  // f(id, how many with this key have lower ids), for all tokens of the key. A thread's ids are
  // neighbours.
  template <class F>
  __device__ void ForKey(uint32_t key, Shared& shared, F&& f) const {
    const int each = (vocab + kThreads - 1) / kThreads,
              begin = min(static_cast<int>(threadIdx.x) * each, vocab),
              end = min(begin + each, vocab);
    Amount own = 0;
    for (int v = begin; v < end; ++v) own += KeyOf(At(v)) == key;
    Amount rank = SumBefore(own, shared);
    for (int v = begin; own > 0 && v < end; ++v)
      if (KeyOf(At(v)) == key) f(v, rank++);
    __syncthreads();
  }
  __device__ int Nth(uint32_t key, Amount nth, Shared& shared) const {
    ForKey(key, shared, [&](int v, Amount rank) {
      if (rank == nth) shared.id = v;
    });
    return shared.id;
  }
};

__device__ Amount ShareOf(float share, Amount sum) {
  const Amount wanted =
      __double2ull_rz(ceil(__dmul_rn(static_cast<double>(share), __ull2double_rn(sum))));
  return min(max(wanted, Amount{1}), sum);
}

// As SampleToken there.
__device__ int Draw(const Row& row, const SampleParams& p, Shared& shared) {
  if (p.temperature <= 0) return row.Nth(KeyOf(row.largest), 0, shared);
  uint32_t least_key = 0;
  Amount more = 0;  // tokens of least_key that stay
  const bool cut = p.top_k > 0 && p.top_k < row.vocab;
  if (cut) {
    const Group last = row.Find<false>(static_cast<Amount>(p.top_k) - 1, shared);
    least_key = last.key;
    more = static_cast<Amount>(p.top_k) - last.ahead;
  }
  Amount sum = 0;
  for (int v = static_cast<int>(threadIdx.x); v < row.vocab; v += kThreads) {
    const float logit = row.At(v);
    if (!cut || KeyOf(logit) > least_key) sum += row.Weight(logit);
  }
  Amount mass = SumOfAll(sum, shared);
  if (cut) mass += more * row.Weight(OfKey(least_key));
  if (p.top_p < 1) {
    const Amount reached = ShareOf(p.top_p, mass) - 1;
    const Group last = row.Find<true>(reached, shared);
    mass = last.ahead + ((reached - last.ahead) / last.each + 1) * last.each;
  }
  if (p.min_p > 0) {
    const Amount least = ShareOf(p.min_p, Amount{1} << 40);
    sum = 0;
    for (int v = static_cast<int>(threadIdx.x); v < row.vocab; v += kThreads) {
      const Amount weight = row.Weight(row.At(v));
      if (weight >= least) sum += weight;
    }
    mass = min(mass, SumOfAll(sum, shared));
  }
  const uint4 words = PhiloxWords(p.seed, kSampleStream, static_cast<uint64_t>(p.drawn));
  const Amount place = __umul64hi(Amount{words.x} << 32 | words.y, mass);
  const Group drawn = row.Find<true>(place, shared);
  return row.Nth(drawn.key, (place - drawn.ahead) / drawn.each, shared);
}

// The `count` likeliest tokens: those above the last one's key, and the first of that key; each
// finds its place by counting those ahead of it.
__device__ void WriteTop(const SampleArgs& a, const Row& row, int count, double log_sum,
                         Shared& shared) {
  const Group last = row.Find<false>(static_cast<Amount>(count) - 1, shared);
  if (threadIdx.x == 0) shared.top_count = 0;
  __syncthreads();
  for (int v = static_cast<int>(threadIdx.x); v < row.vocab; v += kThreads) {
    const uint32_t key = KeyOf(row.At(v));
    if (key <= last.key) continue;
    const int slot = atomicAdd(&shared.top_count, 1);  // which one is no matter
    shared.top_keys[slot] = key;
    shared.top_ids[slot] = v;
  }
  const int ahead = static_cast<int>(last.ahead);
  row.ForKey(last.key, shared, [&](int v, Amount rank) {
    if (rank >= static_cast<Amount>(count - ahead)) return;
    shared.top_keys[ahead + static_cast<int>(rank)] = last.key;
    shared.top_ids[ahead + static_cast<int>(rank)] = v;
  });
  const int i = static_cast<int>(threadIdx.x);
  if (i >= count) return;
  int place = 0;
  for (int j = 0; j < count; ++j)
    place += shared.top_keys[j] > shared.top_keys[i] ||
             (shared.top_keys[j] == shared.top_keys[i] && shared.top_ids[j] < shared.top_ids[i]);
  const int64_t at = int64_t{blockIdx.x} * a.most + place;
  a.top_ids[at] = shared.top_ids[i];
  a.top_logprobs[at] =
      -static_cast<float>(log_sum - static_cast<double>(row.At(shared.top_ids[i])));
}

__device__ float BlockMax(float v, Shared& shared) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2)
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, lane));
  if (threadIdx.x % kWarp == 0) shared.largest[threadIdx.x / kWarp] = v;
  __syncthreads();
  for (int w = 0; w < kThreads / kWarp; ++w) v = fmaxf(v, shared.largest[w]);
  return v;
}

__global__ void __launch_bounds__(kThreads) SampleKernel(const SampleArgs a) {
  BeginKernel();
  __shared__ Shared shared;
  const int64_t r = blockIdx.x;
  const SampleParams p = a.params[r];
  Row row{a.logits.data + r * a.logits.stride * (a.logits.bf16 ? 2 : 4), a.logits.bf16, a.vocab,
          -INFINITY, p.temperature};
  int bad = 0;
  for (int v = static_cast<int>(threadIdx.x); v < a.vocab; v += kThreads) {
    const float x = row.At(v);
    bad |= !isfinite(x);
    row.largest = fmaxf(row.largest, x);
  }
  bad = __syncthreads_or(bad);
  row.largest = BlockMax(row.largest, shared);
  const int count = bad ? 0 : max(0, min(min(p.top, a.most), a.vocab));
  for (int i = count + static_cast<int>(threadIdx.x); i < a.most; i += kThreads) {
    a.top_ids[r * a.most + i] = kNoToken;
    a.top_logprobs[r * a.most + i] = bad ? NAN : 0.0f;
  }
  if (bad) {
    if (threadIdx.x > 0) return;
    a.token[r] = kNoToken;
    a.logprob[r] = NAN;
    return;
  }
  float sum = 0;
  for (int v = static_cast<int>(threadIdx.x); v < a.vocab; v += kThreads)
    sum = __fadd_rn(sum, expf(__fsub_rn(row.At(v), row.largest)));
  const double total = BlockSum(static_cast<double>(sum), shared.sums);
  if (threadIdx.x == 0) shared.log_sum = static_cast<double>(row.largest) + log(total);
  __syncthreads();
  const double log_sum = shared.log_sum;
  const int token = p.given > 0 ? min(p.given, a.vocab) - 1 : Draw(row, p, shared);
  if (threadIdx.x == 0) {
    a.token[r] = token;
    a.logprob[r] = -static_cast<float>(log_sum - static_cast<double>(row.At(token)));
  }
  if (count > 0) WriteTop(a, row, count, log_sum, shared);
}

}  // namespace

void LaunchSample(const SampleArgs& args, const Launch& launch) {
  if (args.rows > 0)
    LaunchKernel(launch, static_cast<unsigned>(args.rows), kThreads, 0, SampleKernel, args);
}

}  // namespace millrace::cuda
