#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/last_block.cuh"
#include "kernels/cuda/loss/cross_entropy_launch.h"
#include "kernels/cuda/loss/row_packs.cuh"
#include "kernels/cuda/loss/softmax.cuh"
#include "kernels/cuda/pack.cuh"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kMaxThreads = 1024;
// Rows of a block: enough to make little of the first, which nobody fetched early, but not all that
// there are: multiprocessors that another kernel holds for a while are made up for by the rest.
constexpr int64_t kRowsPerBlock = 8;

// Rows of up to kSharedPacks packs take half the threads: in 16 bits they are short enough
// for two blocks per multiprocessor, of its 227 KiB. The threads follow from the columns
// alone, not from the dtype.
constexpr int64_t kSharedPacks = 7040;
constexpr int kSharedThreads = 512;
constexpr int64_t kSharedBytes = kSharedPacks * 16, kWholeBytes = 224 * 1024;

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

// How a block's threads share a row: a stretch is kUnroll packs of each thread, a block's width
// apart.
struct Shares {
  int threads, thread, stretch;
  int packs, all_packs;  // of the vocabulary; with the padding behind it
  int last_pass;         // packs of the last pass over a row
  int stretches;         // of this thread, in that pass

  template <bool kGradient>
  __device__ __forceinline__ static Shares Of(const CrossEntropyArgs& a) {
    Shares s;
    s.threads = static_cast<int>(blockDim.x), s.thread = static_cast<int>(threadIdx.x);
    s.stretch = s.threads * kUnroll;
    s.packs = (a.vocab + kPack - 1) / kPack, s.all_packs = (a.padded + kPack - 1) / kPack;
    s.last_pass = kGradient ? s.all_packs : s.packs;
    s.stretches = (s.last_pass - s.thread + s.stretch - 1) / s.stretch;
    return s;
  }
};

// The only pass over a row whose target does not count: its gradient is zero.
template <bool kGradient, class Packs>
__device__ __forceinline__ void ClearRow(const Packs& packs_of, const Shares& s,
                                         std::byte* this_row, const std::byte* next_row) {
  packs_of.Await(0);
  for (int first = s.thread; first < s.last_pass; first += s.stretch) {
    packs_of.template Fetch<kUnroll>(next_row, first, s.threads);
    packs_of.Commit();
    if constexpr (kGradient)
      for (int p = first; p < min(first + s.stretch, s.all_packs); p += s.threads)
        packs_of.Write(this_row, p, Floats{});
  }
}

// The first pass: the softmax of this thread's elements of the vocabulary. It is the last one
// where no gradient is asked for.
template <Elements E, bool kGradient, class Packs>
__device__ __forceinline__ Softmax SoftmaxOfThread(const CrossEntropyArgs& a, const Packs& packs_of,
                                                   const Shares& s, const std::byte* this_row,
                                                   const std::byte* next_row) {
  Softmax softmax{-INFINITY, 0};
  for (int first = s.thread, at = 0; first < s.packs; first += s.stretch, ++at) {
    packs_of.Await(s.stretches - 1 - (kGradient ? at : 0));
    Raw<E> raw[kUnroll];
    int n = 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int p = first + u * s.threads;
      if (p >= s.packs) break;
      raw[u] = packs_of.Read(this_row, p);
      if ((p + 1) * kPack > a.vocab) MaskFrom<E>(raw[u], a.vocab - p * kPack);
      n = u + 1;
    }
    softmax.Add<E>(raw, n);
    if constexpr (!kGradient) {
      packs_of.template Fetch<kUnroll>(next_row, first, s.threads);
      packs_of.Commit();
    }
  }
  return softmax;
}

// The second pass: row[i] = factor * e^(row[i] - max), zero in the padding.
template <Elements E, bool kWide, class Packs>
__device__ __forceinline__ void WriteGradient(const CrossEntropyArgs& a, const Packs& packs_of,
                                              const Shares& s, float max, float factor,
                                              std::byte* this_row, const std::byte* next_row) {
  constexpr int kAtOnce = kWide && kIsShort<E> ? kUnroll : 1;  // as registers allow
  int p_first = s.thread;
  for (int at = 0; at < s.stretches; ++at) {
#pragma unroll 1
    for (int k = 0; k < kUnroll / kAtOnce; ++k, p_first += kAtOnce * s.threads) {
      Raw<E> raw[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int p = p_first + u * s.threads;
        if (p < s.packs) raw[u] = packs_of.Read(this_row, p);
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int p = p_first + u * s.threads;
        if (p >= s.all_packs) break;
        Floats x = ToFloats<E>(Rows{}, raw[u]);
#pragma unroll
        for (int i = 0; i < kPack; ++i) x.v[i] = __fmul_rn(Exp(__fsub_rn(x.v[i], max)), factor);
        // Padding is zero whatever the row holds, NaN included.
        if ((p + 1) * kPack > a.vocab)
#pragma unroll
          for (int i = 0; i < kPack; ++i)
            if (p * kPack + i >= a.vocab) x.v[i] = 0;
        packs_of.Write(this_row, p, x);
      }
      packs_of.template Fetch<kAtOnce>(next_row, p_first, s.threads);  // all of raw has arrived
    }
    packs_of.Commit();
  }
}

// logsumexp(row) - row[target].
__device__ __forceinline__ double SurpriseOf(const Softmax& softmax, float target) {
  return static_cast<double>(softmax.max) + log(static_cast<double>(softmax.sum)) -
         static_cast<double>(target);
}

// Of a row that has a weight, or what a policy gradient needs: its loss is written. Returns what
// multiplies softmax - [y] of its gradient.
__device__ __forceinline__ float WriteToldLoss(const CrossEntropyArgs& a, int64_t row,
                                               double surprise) {
  const Term term = a.advantages.data != nullptr ? PolicyTerm(a, row, surprise) : Term{surprise, 1};
  const double weight = WeightOf(a, row);
  a.row_loss[row] = weight * term.loss;
  return static_cast<float>(a.loss_weight * a.targets.scalars->inv_valid_tokens *
                            (weight * term.slope) * a.targets.scalars->loss_scale);
}

// loss_sum (=|+=) sum of row_loss, by the grid's last block, in an order that depends on the number
// of rows alone: lane t of kLossLanes adds up rows t, t + kLossLanes, ..., then each warp of them
// its lanes, then one thread the warps.
constexpr int kLossLanes = 1024;

__device__ __forceinline__ void AddLosses(const CrossEntropyArgs& a) {
  constexpr int kWarps = kLossLanes / kWarp;
  __shared__ double of_warp[kWarps];
  __syncthreads();  // any thread has written a row's loss
  if (!IsLastBlock(a.ticket)) return;
  const int thread = static_cast<int>(threadIdx.x);
  for (int w = thread / kWarp; w < kWarps; w += static_cast<int>(blockDim.x) / kWarp) {
    double sum = 0;
#pragma unroll 4
    for (int64_t r = w * kWarp + thread % kWarp; r < a.rows; r += kLossLanes)
      sum = __dadd_rn(sum, __ldcg(a.row_loss + r));
    sum = WarpSum(sum);
    if (thread % kWarp == 0) of_warp[w] = sum;
  }
  __syncthreads();
  if (thread > 0) return;
  double sum = of_warp[0];
  for (int w = 1; w < kWarps; ++w) sum = __dadd_rn(sum, of_warp[w]);
  if (a.targets.scalars->inject_loss_nan != 0) sum = NAN;
  *a.loss_sum = a.add_loss ? __dadd_rn(*a.loss_sum, sum) : sum;
}

// row_loss[r] = logsumexp(row[:vocab]) - row[target], and the gradient in place, for the
// rows that this block takes; and the sum of all losses. The last pass over a row frees the cache
// pack by pack, and fetches the next row into it.
// kTold: there are weights, or what a policy gradient needs; a row's scale is then its own.
template <Elements E, bool kGradient, bool kWide, bool kTold>
__global__ void __launch_bounds__(kMaxThreads, 1)
    CrossEntropyKernel(const CrossEntropyArgs a, const int cached) {
  BeginKernel();
  extern __shared__ uint4 shared[];
  // In turn: a warp may still read one when the next row is joined.
  __shared__ Softmax of_warp[2][kWarp];
  const RowPacks<E, kWide> packs_of(a, shared, cached);
  const Shares s = Shares::Of<kGradient>(a);
  __shared__ float scale_of_row;  // kTold
  float scale = kGradient ? static_cast<float>(a.loss_weight * a.targets.scalars->inv_valid_tokens *
                                               a.targets.scalars->loss_scale)
                          : 0;

  int64_t row = blockIdx.x;
  std::byte* next_row = row < a.rows ? packs_of.Row(row) : nullptr;
  for (int first = s.thread; first < s.last_pass; first += s.stretch) {
    packs_of.template Fetch<kUnroll>(next_row, first, s.threads);
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
      if (s.thread == 0) {
        a.row_loss[row] = 0;
        if constexpr (kTold) WriteTally(a, row, 0, 0, 0, 0);
      }
      ClearRow<kGradient>(packs_of, s, this_row, next_row);
      continue;
    }
    const bool has_target = s.thread == target / kPack % s.threads;
    uint32_t target_bits = 0;
    if (has_target) target_bits = packs_of.Bits(this_row, target);

    Softmax softmax = SoftmaxOfThread<E, kGradient>(a, packs_of, s, this_row, next_row);
    softmax = BlockJoin(softmax, of_warp[turn]);
    turn ^= 1;

    if constexpr (kTold) {
      if (has_target)
        scale_of_row = WriteToldLoss(a, row, SurpriseOf(softmax, packs_of.Value(target_bits)));
      if constexpr (kGradient) {
        __syncthreads();  // the next row's is written behind its BlockJoin, when all have read this
        scale = scale_of_row;
      }
    }
    if constexpr (kGradient) {
      const float inverse_sum = __fdiv_rn(1.0f, softmax.sum);
      WriteGradient<E, kWide>(a, packs_of, s, softmax.max, __fmul_rn(inverse_sum, scale), this_row,
                              next_row);
      if (has_target) {  // after its pack, which is this thread's too
        const float p =
            __fmul_rn(Exp(__fsub_rn(packs_of.Value(target_bits), softmax.max)), inverse_sum);
        packs_of.WriteOne(this_row, target, __fmul_rn(__fsub_rn(p, 1.0f), scale));
      }
    }
    if (!kTold && has_target) a.row_loss[row] = SurpriseOf(softmax, packs_of.Value(target_bits));
  }
  AddLosses(a);
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

// Rows are read where they lie.
template <Elements E, bool kWide>
__global__ void __launch_bounds__(kMaxThreads) LogprobKernel(const LogprobArgs a) {
  // That the logits are complete the kernel before has seen, not this one: no old line of theirs.
  a.complete ? __threadfence() : BeginKernel();
  __shared__ Softmax of_warp[kWarp];
  CrossEntropyArgs row_args;
  row_args.logits = a.logits;
  row_args.vocab = a.vocab, row_args.padded = a.padded;
  const RowPacks<E, kWide> packs_of(row_args, nullptr, 0);
  const std::byte* const row = packs_of.Row(blockIdx.x);
  const Softmax softmax = BlockJoin(
      SoftmaxOfThread<E, false>(row_args, packs_of, Shares::Of<false>(row_args), row, nullptr),
      of_warp);
  if (a.complete) BeginKernel();  // for tokens
  for (const LogprobArgs::Tokens& of : a.tokens)
    for (int i = static_cast<int>(threadIdx.x); i < of.most; i += static_cast<int>(blockDim.x)) {
      const int64_t at = int64_t{blockIdx.x} * of.most + i;
      const int id = of.ids[at];
      if (id < 0) continue;
      const float logit = packs_of.Value(packs_of.Bits(row, id));
      of.logprobs[at] = -static_cast<float>(SurpriseOf(softmax, logit));
    }
}

// Of a row's packs: what decides its order of additions.
int64_t ThreadsOf(int padded) {
  const int64_t packs = Packs(padded);
  const int64_t limit = packs <= kSharedPacks ? kSharedThreads : kMaxThreads;
  return std::min(limit, CeilDiv(packs, kWarp) * kWarp);
}

template <Elements E, bool kGradient, bool kWide, bool kTold>
void LaunchRows(const CrossEntropyArgs& args, const Launch& launch) {
  const int64_t raw_bytes = sizeof(Raw<E>), threads = ThreadsOf(args.padded);
  const int64_t cached = std::min(Packs(args.vocab), kWholeBytes / raw_bytes),
                bytes = cached * raw_bytes;
  // A row's result is the same whichever block takes it.
  const int64_t per_sm = std::clamp<int64_t>((2 * kSharedBytes) / std::max<int64_t>(bytes, 1), 1,
                                             kMaxThreads / threads);
  const int64_t blocks = std::max(
      {int64_t{1}, std::min(args.rows, per_sm * launch.sms), CeilDiv(args.rows, kRowsPerBlock)});
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
  WithElementsOf(args.logits, [&]<Elements E>() {
    args.gradient ? LaunchRows<E, true>(args, launch) : LaunchRows<E, false>(args, launch);
  });
  if (args.tally != nullptr) LaunchKernel(launch, 1, 1024, 0, TallyKernel, args);
}

void LaunchLogprobs(const LogprobArgs& args, Launch launch) {
  if (args.rows == 0) return;
  if (args.complete && launch.early == EarlyLaunch::kBegin) launch.early = EarlyLaunch::kEnd;
  const bool wide = args.logits.wide && args.padded % kPack == 0;
  WithElementsOf(args.logits, [&]<Elements E>() {
    LaunchKernel(launch, static_cast<unsigned>(args.rows),
                 static_cast<unsigned>(ThreadsOf(args.padded)), 0,
                 wide ? LogprobKernel<E, true> : LogprobKernel<E, false>, args);
  });
}

}  // namespace millrace::cuda
