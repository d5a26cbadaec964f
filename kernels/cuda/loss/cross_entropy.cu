#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/loss/cross_entropy_launch.h"
#include "kernels/cuda/pack.cuh"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kUnroll = 4;  // packs that a thread takes at a time
// Rows of a block: enough to make little of the first, which nobody fetched early, but not all that
// there are: multiprocessors that another kernel holds for a while are made up for by the rest.
constexpr int64_t kRowsPerBlock = 8;

// Rows of up to kSharedPacks packs take half the threads: in bf16 they are short enough
// for two blocks per multiprocessor, of its 227 KiB. The threads follow from the columns
// alone, not from the dtype.
constexpr int64_t kSharedPacks = 7040;
constexpr int kSharedThreads = 512;
constexpr int64_t kSharedBytes = kSharedPacks * 16, kWholeBytes = 224 * 1024;

constexpr float kLog2E = 1.44269504088896341f;

// e^z for z <= 0, relatively within (4 + 1.5 |z|) units of 2^-24; 0 below the normal range.
__device__ __forceinline__ float Exp(float z) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(__fmul_rn(z, kLog2E)));
  return y;
}

// The larger in each half; NaNs lose.
__device__ __forceinline__ uint32_t LargerOfPair(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

__device__ __forceinline__ float Largest(const Raw<Elements::kBF16>& raw) {
  const uint32_t pair =
      LargerOfPair(LargerOfPair(raw.low.x, raw.low.y), LargerOfPair(raw.low.z, raw.low.w));
  return fmaxf(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
__device__ __forceinline__ float Largest(const Raw<Elements::kF32>& raw) {
  const Floats x = ToFloats<Elements::kF32>(Rows{}, raw);
  float largest = x.v[0];
#pragma unroll
  for (int i = 1; i < kPack; ++i) largest = fmaxf(largest, x.v[i]);
  return largest;
}

// A pack whose elements from `left` on take no part: -infinity.
template <Elements E>
__device__ __forceinline__ void MaskFrom(Raw<E>& raw, int left) {
  Floats x = ToFloats<E>(Rows{}, raw);
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    if (i >= left) x.v[i] = -INFINITY;
  Rows rows;
  rows.bf16 = E == Elements::kBF16;
  raw = FromFloats<E>(rows, x);
}

// Over some elements: `sum` is that of e^(x - max); over none: -infinity, 0. NaNs do not
// enter max, but poison sum.
struct Softmax {
  float max, sum;

  // What x - max may subtract while all elements so far are -infinity.
  __device__ static float Base(float max) { return max == -INFINITY ? 0.0f : max; }

  // The first n packs.
  template <Elements E>
  __device__ void Add(const Raw<E> (&raw)[kUnroll], int n) {
    float largest = max;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (u < n) largest = fmaxf(largest, Largest(raw[u]));
    const float base = Base(largest);
    float added = 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= n) break;
      Floats x = ToFloats<E>(Rows{}, raw[u]);
#pragma unroll
      for (int i = 0; i < kPack; ++i) x.v[i] = Exp(__fsub_rn(x.v[i], base));
      added = __fadd_rn(added, SumOfPack(x));
    }
    sum = __fadd_rn(__fmul_rn(sum, Exp(__fsub_rn(max, base))), added);
    max = largest;
  }
  // Commutative bit for bit.
  __device__ void Join(Softmax other) {
    const float largest = fmaxf(max, other.max), base = Base(largest);
    sum = __fadd_rn(__fmul_rn(sum, Exp(__fsub_rn(max, base))),
                    __fmul_rn(other.sum, Exp(__fsub_rn(other.max, base))));
    max = largest;
  }
  // Over the lanes of a warp, the same bits in each.
  __device__ void JoinLanes() {
#pragma unroll
    for (int lane = kWarp / 2; lane > 0; lane /= 2)
      Join({__shfl_xor_sync(0xffffffffu, max, lane), __shfl_xor_sync(0xffffffffu, sum, lane)});
  }
};

// Joined over the block, the same bits in every thread.
__device__ __forceinline__ Softmax BlockJoin(Softmax s, Softmax (&of_warp)[kWarp]) {
  const int warps = static_cast<int>(blockDim.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  s.JoinLanes();
  if (lane == 0) of_warp[threadIdx.x / kWarp] = s;
  __syncthreads();
  s = lane < warps ? of_warp[lane] : Softmax{-INFINITY, 0};
  s.JoinLanes();
  return s;
}

// Another value of a row's target.
__device__ __forceinline__ float ValueOf(const CrossEntropyArgs& a, const ValueRows& values,
                                         int64_t row) {
  const auto at = static_cast<uint32_t>(a.row_begin + row),
             length = static_cast<uint32_t>(a.targets.length);
  return values.data[a.targets.scalars->token_parity * a.values_parity_stride +
                     at / length * values.batch_stride + at % length * values.length_stride];
}

__device__ __forceinline__ double WeightOf(const CrossEntropyArgs& a, int64_t row) {
  return a.weights.data == nullptr ? 1.0 : static_cast<double>(ValueOf(a, a.weights, row));
}

// Of a row; -1 past the last, and where its weight is 0. `tokens` addresses the parity in use.
template <bool kTold>
__device__ __forceinline__ int TargetOf(const CrossEntropyArgs& a, const int32_t* tokens,
                                        int64_t row) {
  if (row >= a.rows) return -1;
  const auto at = static_cast<uint32_t>(a.row_begin + row),
             length = static_cast<uint32_t>(a.targets.length);
  if constexpr (kTold)
    if (WeightOf(a, row) == 0) return -1;
  return tokens[at / length * a.targets.batch_stride + at % length * a.targets.length_stride];
}

__device__ __forceinline__ void WriteTally(const CrossEntropyArgs& a, int64_t row, double counts,
                                           double clipped, double ratio, double divergence) {
  if (a.row_tally == nullptr) return;
  const auto at = [&](int64_t of) -> float& { return a.row_tally[of * a.rows + row]; };
  at(PolicyTally::kTargets) = static_cast<float>(counts);
  at(PolicyTally::kClipped) = static_cast<float>(clipped);
  at(PolicyTally::kRatios) = static_cast<float>(ratio);
  at(PolicyTally::kDivergence) = static_cast<float>(divergence);
}

// Of a row whose target counts: its loss, and what multiplies softmax - [y] of its gradient.
struct Term {
  double loss, slope;
};

// -min(ratio A, clamp(ratio) A) + kl k of the log-probability l, and -d/dl of it; as the CPU's.
__device__ __noinline__ Term PolicyTerm(const CrossEntropyArgs& a, int64_t row, double surprise) {
  const double logprob = static_cast<double>(static_cast<float>(-surprise)),
               advantage = ValueOf(a, a.advantages, row),
               moved = logprob - static_cast<double>(ValueOf(a, a.old_logprobs, row)),
               ratio = exp(moved), low = 1 - static_cast<double>(a.policy.clip_low),
               high = 1 + static_cast<double>(a.policy.clip_high);
  const double unclipped = __dmul_rn(ratio, advantage), clamped = __dmul_rn(ratio < low    ? low
                                                                            : ratio > high ? high
                                                                                           : ratio,
                                                                            advantage);
  const bool clipped = clamped < unclipped;
  Term term{clipped ? -clamped : -unclipped, clipped ? 0 : unclipped};
  double divergence = ratio - 1 - moved;
  if (a.reference_logprobs.data != nullptr) {
    const double apart = static_cast<double>(ValueOf(a, a.reference_logprobs, row)) - logprob,
                 e = exp(apart), kl = static_cast<double>(a.policy.kl);
    divergence = e - apart - 1;
    term.loss += kl * divergence;
    term.slope += kl * (e - 1);
  }
  WriteTally(a, row, 1, clipped ? 1 : 0, ratio, divergence);
  return term;
}

// The packs of the rows that a block takes. The first of a row are read from shared memory,
// where a thread finds only what it fetched. With kWide a fetch is a copy in the background;
// Commit ends a stretch of them.
template <Elements E, bool kWide>
struct RowPacks {
  static constexpr int kRawBytes = sizeof(Raw<E>), kBytes = kRawBytes / kPack;

  Rows logits;
  int padded, cached;
  uint32_t cache;  // address in shared memory

  __device__ RowPacks(const CrossEntropyArgs& a, const void* shared, int cached)
      : logits(a.logits),
        padded(a.padded),
        cached(cached),
        cache(static_cast<uint32_t>(__cvta_generic_to_shared(shared))) {
    asm volatile("" : "+r"(cache));  // kept, not computed anew
  }
  __device__ __forceinline__ std::byte* Row(int64_t row) const {
    std::byte* begin = logits.data + row * logits.stride * kBytes;
    asm volatile("" : "+l"(begin));  // as above
    return begin;
  }
  __device__ __forceinline__ void Fetch(const std::byte* row, int p) const {
    if (p >= cached) return;
    const uint32_t to = cache + static_cast<uint32_t>(p) * kRawBytes;
    if constexpr (kWide) {
      const std::byte* from = row + int64_t{p} * kRawBytes;
#pragma unroll
      for (int piece = 0; piece < kRawBytes; piece += 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + piece),
                     "l"(from + piece)
                     : "memory");
    } else {
      const Raw<E> raw = FromMemory(row, p);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(raw.low.x),
                   "r"(raw.low.y), "r"(raw.low.z), "r"(raw.low.w)
                   : "memory");
      if constexpr (E == Elements::kF32)
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + 16), "r"(raw.high.x),
                     "r"(raw.high.y), "r"(raw.high.z), "r"(raw.high.w)
                     : "memory");
    }
  }
  // n packs, `step` apart, of the row that comes next; nullptr: there is none.
  template <int n>
  __device__ __forceinline__ void Fetch(const std::byte* row, int first, int step) const {
    if (row == nullptr) return;
#pragma unroll
    for (int u = 0; u < n; ++u) Fetch(row, first + u * step);
  }
  __device__ __forceinline__ static void Commit() {
    if constexpr (kWide) asm volatile("cp.async.commit_group;" ::: "memory");
  }
  // Waits until at most the latest `pending` stretches are on their way, or three.
  __device__ __forceinline__ static void Await(int pending) {
    if constexpr (!kWide) return;
    if (pending <= 0)
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    else if (pending == 1)
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    else if (pending == 2)
      asm volatile("cp.async.wait_group 2;" ::: "memory");
    else
      asm volatile("cp.async.wait_group 3;" ::: "memory");
  }
  __device__ __forceinline__ Raw<E> Read(const std::byte* row, int p) const {
    if (p >= cached) return FromMemory(row, p);
    const uint32_t from = cache + static_cast<uint32_t>(p) * kRawBytes;
    Raw<E> raw;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.low.x), "=r"(raw.low.y), "=r"(raw.low.z), "=r"(raw.low.w)
                 : "r"(from)
                 : "memory");
    if constexpr (E == Elements::kF32)
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(raw.high.x), "=r"(raw.high.y), "=r"(raw.high.z), "=r"(raw.high.w)
                   : "r"(from + 16)
                   : "memory");
    return raw;
  }
  __device__ __forceinline__ void Write(std::byte* row, int p, const Floats& x) const {
    if constexpr (kWide) {  // on its way out: nothing reads it before the whole chunk is written
      const Raw<E> raw = FromFloats<E>(logits, x);
      uint4* to = reinterpret_cast<uint4*>(row + int64_t{p} * kRawBytes);
      __stcs(to, raw.low);
      if constexpr (E == Elements::kF32) __stcs(to + 1, raw.high);
    } else {
      Store<E>(At(row), int64_t{p} * kPack, padded - p * kPack, x);
    }
  }
  // One element as it lies in memory, and its value: apart, so that the load is
  // awaited where the value is used.
  __device__ __forceinline__ uint32_t Bits(const std::byte* row, int column) const {
    if constexpr (E == Elements::kBF16) return reinterpret_cast<const uint16_t*>(row)[column];
    return reinterpret_cast<const uint32_t*>(row)[column];
  }
  __device__ __forceinline__ static float Value(uint32_t bits) {
    asm volatile("" : "+r"(bits));
    return __uint_as_float(E == Elements::kBF16 ? bits << 16 : bits);
  }
  __device__ __forceinline__ void WriteOne(std::byte* row, int column, float value) const {
    Store<E>(At(row), column, 1, Floats{{value}});
  }

 private:
  __device__ __forceinline__ Rows At(const std::byte* row) const {
    Rows at = logits;
    at.data = const_cast<std::byte*>(row);
    return at;
  }
  __device__ __forceinline__ Raw<E> FromMemory(const std::byte* row, int p) const {
    if constexpr (!kWide) return LoadRaw<E>(At(row), int64_t{p} * kPack, padded - p * kPack);
    const uint4* from = reinterpret_cast<const uint4*>(row + int64_t{p} * kRawBytes);
    Raw<E> raw;
    raw.low = *from;
    if constexpr (E == Elements::kF32) raw.high = from[1];
    return raw;
  }
};

// row_loss[r] = logsumexp(row[:vocab]) - row[target], and the gradient in place, for the
// rows that this block takes. The last pass over a row frees the cache pack by pack, and
// fetches the next row into it.
// kTold: there are weights, or what a policy gradient needs; a row's scale is then its own.
template <Elements E, bool kGradient, bool kWide, bool kTold>
__global__ void __launch_bounds__(kMaxThreads, 1)
    CrossEntropyKernel(const CrossEntropyArgs a, const int cached) {
  BeginKernel();
  extern __shared__ uint4 shared[];
  // In turn: a warp may still read one when the next row is joined.
  __shared__ Softmax of_warp[2][kWarp];
  const RowPacks<E, kWide> packs_of(a, shared, cached);
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int stretch = threads * kUnroll;
  const int packs = (a.vocab + kPack - 1) / kPack, all_packs = (a.padded + kPack - 1) / kPack;
  const int last_pass = kGradient ? all_packs : packs;
  const int stretches = (last_pass - thread + stretch - 1) / stretch;
  __shared__ float scale_of_row;  // kTold
  float scale =
      kGradient ? static_cast<float>(a.loss_weight * a.targets.scalars->inv_valid_tokens) : 0;

  int64_t row = blockIdx.x;
  std::byte* next_row = packs_of.Row(row);
  for (int first = thread; first < last_pass; first += stretch) {
    packs_of.template Fetch<kUnroll>(next_row, first, threads);
    packs_of.Commit();
  }
  const int32_t* const tokens =
      a.targets.data + a.targets.scalars->token_parity * a.targets.parity_stride;
  int next_target = TargetOf<kTold>(a, tokens, row), turn = 0;
  for (; row < a.rows; row += gridDim.x) {
    std::byte* const this_row = next_row;
    const int target = next_target;
    const int64_t next = row + gridDim.x;
    next_row = next < a.rows ? packs_of.Row(next) : nullptr;
    next_target = TargetOf<kTold>(a, tokens, next);
    if (target < 0) {
      if (thread == 0) {
        a.row_loss[row] = 0;
        if constexpr (kTold) WriteTally(a, row, 0, 0, 0, 0);
      }
      packs_of.Await(0);
      for (int first = thread; first < last_pass; first += stretch) {
        packs_of.template Fetch<kUnroll>(next_row, first, threads);
        packs_of.Commit();
        if constexpr (kGradient)
          for (int p = first; p < min(first + stretch, all_packs); p += threads)
            packs_of.Write(this_row, p, Floats{});
      }
      continue;
    }
    const bool has_target = thread == target / kPack % threads;
    uint32_t target_bits = 0;
    if (has_target) target_bits = packs_of.Bits(this_row, target);

    Softmax softmax{-INFINITY, 0};
    for (int first = thread, s = 0; first < packs; first += stretch, ++s) {
      packs_of.Await(stretches - 1 - (kGradient ? s : 0));
      Raw<E> raw[kUnroll];
      int n = 0;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int p = first + u * threads;
        if (p >= packs) break;
        raw[u] = packs_of.Read(this_row, p);
        if ((p + 1) * kPack > a.vocab) MaskFrom<E>(raw[u], a.vocab - p * kPack);
        n = u + 1;
      }
      softmax.Add<E>(raw, n);
      if constexpr (!kGradient) {
        packs_of.template Fetch<kUnroll>(next_row, first, threads);
        packs_of.Commit();
      }
    }
    softmax = BlockJoin(softmax, of_warp[turn]);
    turn ^= 1;

    if constexpr (kTold) {
      if (has_target) {
        const double surprise = static_cast<double>(softmax.max) +
                                log(static_cast<double>(softmax.sum)) -
                                static_cast<double>(packs_of.Value(target_bits));
        const Term term =
            a.advantages.data != nullptr ? PolicyTerm(a, row, surprise) : Term{surprise, 1};
        const double weight = WeightOf(a, row);
        a.row_loss[row] = weight * term.loss;
        scale_of_row = static_cast<float>(a.loss_weight * a.targets.scalars->inv_valid_tokens *
                                          (weight * term.slope));
      }
      if constexpr (kGradient) {
        __syncthreads();  // the next row's is written behind its BlockJoin, when all have read this
        scale = scale_of_row;
      }
    }
    if constexpr (kGradient) {
      const float inverse_sum = __fdiv_rn(1.0f, softmax.sum),
                  factor = __fmul_rn(inverse_sum, scale);
      constexpr int kAtOnce = kWide && E == Elements::kBF16 ? kUnroll : 1;  // as registers allow
      int p_first = thread;
      for (int s = 0; s < stretches; ++s) {
#pragma unroll 1
        for (int k = 0; k < kUnroll / kAtOnce; ++k, p_first += kAtOnce * threads) {
          Raw<E> raw[kAtOnce];
#pragma unroll
          for (int u = 0; u < kAtOnce; ++u) {
            const int p = p_first + u * threads;
            if (p < packs) raw[u] = packs_of.Read(this_row, p);
          }
#pragma unroll
          for (int u = 0; u < kAtOnce; ++u) {
            const int p = p_first + u * threads;
            if (p >= all_packs) break;
            Floats x = ToFloats<E>(Rows{}, raw[u]);
#pragma unroll
            for (int i = 0; i < kPack; ++i)
              x.v[i] = __fmul_rn(Exp(__fsub_rn(x.v[i], softmax.max)), factor);
            // Padding is zero whatever the row holds, NaN included.
            if ((p + 1) * kPack > a.vocab)
#pragma unroll
              for (int i = 0; i < kPack; ++i)
                if (p * kPack + i >= a.vocab) x.v[i] = 0;
            packs_of.Write(this_row, p, x);
          }
          packs_of.template Fetch<kAtOnce>(next_row, p_first, threads);  // all of raw has arrived
        }
        packs_of.Commit();
      }
      if (has_target) {  // after its pack, which is this thread's too
        const float p =
            __fmul_rn(Exp(__fsub_rn(packs_of.Value(target_bits), softmax.max)), inverse_sum);
        packs_of.WriteOne(this_row, target, __fmul_rn(__fsub_rn(p, 1.0f), scale));
      }
    }
    if (!kTold && has_target)
      a.row_loss[row] = static_cast<double>(softmax.max) + log(static_cast<double>(softmax.sum)) -
                        static_cast<double>(packs_of.Value(target_bits));
  }
}

// tally (=|+=) sums over rows of row_tally.
__global__ void __launch_bounds__(1024) TallyKernel(const CrossEntropyArgs a) {
  BeginKernel();
  __shared__ double shared[32];
  for (int of = 0; of < PolicyTally::kCount; ++of) {
    double sum = 0;
    for (int64_t r = threadIdx.x; r < a.rows; r += blockDim.x)
      sum = __dadd_rn(sum, static_cast<double>(a.row_tally[of * a.rows + r]));
    sum = BlockSum(sum, shared);
    if (threadIdx.x == 0)
      a.tally[of] =
          a.add_tally ? __fadd_rn(a.tally[of], static_cast<float>(sum)) : static_cast<float>(sum);
    __syncthreads();
  }
}

// loss_sum (=|+=) sum of row_loss.
__global__ void __launch_bounds__(1024) LossSumKernel(const CrossEntropyArgs a) {
  BeginKernel();
  __shared__ double shared[32];
  double sum = 0;
#pragma unroll 4
  for (int64_t r = threadIdx.x; r < a.rows; r += blockDim.x) sum = __dadd_rn(sum, a.row_loss[r]);
  sum = BlockSum(sum, shared);
  if (threadIdx.x > 0) return;
  if (a.targets.scalars->inject_loss_nan != 0) sum = NAN;
  *a.loss_sum = a.add_loss ? __dadd_rn(*a.loss_sum, sum) : sum;
}

template <Elements E, bool kGradient, bool kWide, bool kTold>
void LaunchRows(const CrossEntropyArgs& args, const Launch& launch) {
  const int64_t packs = Packs(args.padded), raw_bytes = sizeof(Raw<E>);
  const int64_t limit = packs <= kSharedPacks ? kSharedThreads : kMaxThreads;
  const int64_t threads = std::min(limit, CeilDiv(packs, kWarp) * kWarp);
  const int64_t cached = std::min(Packs(args.vocab), kWholeBytes / raw_bytes),
                bytes = cached * raw_bytes;
  // A row's result is the same whichever block takes it.
  const int64_t per_sm = std::clamp<int64_t>((2 * kSharedBytes) / std::max<int64_t>(bytes, 1), 1,
                                             kMaxThreads / threads);
  const int64_t blocks =
      std::max(std::min(args.rows, per_sm * launch.sms), CeilDiv(args.rows, kRowsPerBlock));
  const auto kernel = CrossEntropyKernel<E, kGradient, kWide, kTold>;
  MR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWholeBytes));
  MR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared));
  LaunchKernel(launch, static_cast<unsigned>(blocks), static_cast<unsigned>(threads),
               static_cast<size_t>(bytes), kernel, args, static_cast<int>(cached));
}

template <Elements E, bool kGradient>
void LaunchRows(const CrossEntropyArgs& args, const Launch& launch) {
  const bool wide = args.logits.wide && args.padded % kPack == 0,
             told = args.weights.data != nullptr || args.advantages.data != nullptr;
  if (wide && told)
    LaunchRows<E, kGradient, true, true>(args, launch);
  else if (wide)
    LaunchRows<E, kGradient, true, false>(args, launch);
  else if (told)
    LaunchRows<E, kGradient, false, true>(args, launch);
  else
    LaunchRows<E, kGradient, false, false>(args, launch);
}

}  // namespace

void LaunchCrossEntropy(const CrossEntropyArgs& args, const Launch& launch) {
  if (args.rows > 0) {
    if (args.logits.bf16 && args.gradient)
      LaunchRows<Elements::kBF16, true>(args, launch);
    else if (args.logits.bf16)
      LaunchRows<Elements::kBF16, false>(args, launch);
    else if (args.gradient)
      LaunchRows<Elements::kF32, true>(args, launch);
    else
      LaunchRows<Elements::kF32, false>(args, launch);
  }
  LaunchKernel(launch, 1, 1024, 0, LossSumKernel, args);
  if (args.tally != nullptr) LaunchKernel(launch, 1, 1024, 0, TallyKernel, args);
}

}  // namespace millrace::cuda
