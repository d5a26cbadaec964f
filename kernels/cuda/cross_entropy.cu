#include <algorithm>

#include "kernels/cuda/cross_entropy_launch.h"
#include "kernels/cuda/flat.cuh"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kUnroll = 4;
// Two blocks per multiprocessor, of its 227 KiB: a row of 56,320 bf16 logits stays on the chip.
constexpr int kCacheBytes = 110 * 1024;

constexpr float kLog2E = 1.44269504088896341f;

// e^z for z <= 0, relatively within (4 + 1.5 |z|) units of 2^-24; 0 below the normal range.
__device__ __forceinline__ float Exp(float z) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(__fmul_rn(z, kLog2E)));
  return y;
}

// Over some elements: `sum` is that of e^(x - max); over none: -infinity, 0. NaNs do not enter max, but
// poison sum.
struct Softmax {
  float max, sum;

  // What x - max may subtract while all elements so far are -infinity.
  __device__ static float Base(float max) { return max == -INFINITY ? 0.0f : max; }

  __device__ void Add(const Floats& x) {
    float largest = max;
#pragma unroll
    for (int i = 0; i < kPack; ++i) largest = fmaxf(largest, x.v[i]);
    const float base = Base(largest);
    Floats e;
#pragma unroll
    for (int i = 0; i < kPack; ++i) e.v[i] = Exp(__fsub_rn(x.v[i], base));
    sum = __fadd_rn(__fmul_rn(sum, Exp(__fsub_rn(max, base))), SumOfPack(e));
    max = largest;
  }
  // Commutative bit for bit.
  __device__ void Join(Softmax other) {
    const float largest = fmaxf(max, other.max), base = Base(largest);
    sum = __fadd_rn(__fmul_rn(sum, Exp(__fsub_rn(max, base))),
                    __fmul_rn(other.sum, Exp(__fsub_rn(other.max, base))));
    max = largest;
  }
};

// Joined over the block, the same bits in every thread.
__device__ Softmax BlockJoin(Softmax s) {
  __shared__ Softmax of_warp[kMaxThreads / kWarp];
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2)
    s.Join({__shfl_xor_sync(0xffffffffu, s.max, lane), __shfl_xor_sync(0xffffffffu, s.sum, lane)});
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = s;
  __syncthreads();
  s = of_warp[0];
  for (int w = 1; w < static_cast<int>(blockDim.x) / kWarp; ++w) s.Join(of_warp[w]);
  return s;
}

// Elements that are none of the vocabulary take part as -infinity.
__device__ __forceinline__ void MaskFrom(Floats& x, int left) {
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    if (i >= left) x.v[i] = -INFINITY;
}

// row_loss[r] = logsumexp(row[:vocab]) - row[target], and the gradient in place. The first `cached` packs of
// the row wait in shared memory for the second pass.
template <Elements E, bool kGradient>
__global__ void __launch_bounds__(kMaxThreads, 2)
    CrossEntropyKernel(const CrossEntropyArgs a, const int cached) {
  extern __shared__ uint4 shared[];
  Raw<E>* const cache = reinterpret_cast<Raw<E>*>(shared);
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x, begin = row * a.logits.stride;
  const int packs = (a.vocab + kPack - 1) / kPack, all_packs = (a.padded + kPack - 1) / kPack;
  const int target = TokenAt(a.targets, a.row_begin + row);
  if (target < 0) {
    if (thread == 0) a.row_loss[row] = 0;
    if constexpr (kGradient)
      for (int p = thread; p < all_packs; p += threads)
        StoreRaw<E>(a.logits, begin + p * kPack, a.padded - p * kPack, Raw<E>{});
    return;
  }

  Softmax softmax{-INFINITY, 0};
  for (int first = thread; first < packs; first += threads * kUnroll) {
    Raw<E> raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int p = first + u * threads;
      if (p < packs) raw[u] = LoadRaw<E>(a.logits, begin + p * kPack, a.padded - p * kPack);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int p = first + u * threads;
      if (p >= packs) break;
      if constexpr (kGradient)
        if (p < cached) cache[p] = raw[u];  // read by this thread only
      Floats x = ToFloats<E>(a.logits, raw[u]);
      if ((p + 1) * kPack > a.vocab) MaskFrom(x, a.vocab - p * kPack);
      softmax.Add(x);
    }
  }
  float target_logit = 0;
  if (thread == 0)  // before anybody writes the gradient: BlockJoin synchronises
    target_logit = ToFloats<E>(a.logits, LoadRaw<E>(a.logits, begin + target, 1)).v[0];
  softmax = BlockJoin(softmax);
  if (thread == 0)
    a.row_loss[row] = static_cast<double>(softmax.max) + log(static_cast<double>(softmax.sum)) -
                      static_cast<double>(target_logit);

  if constexpr (kGradient) {
    const float inverse_sum = __fdiv_rn(1.0f, softmax.sum);
    const float scale = static_cast<float>(a.targets.scalars->inv_valid_tokens);
    for (int first = thread; first < all_packs; first += threads * kUnroll) {
      Raw<E> raw[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int p = first + u * threads;
        if (p >= all_packs) break;
        raw[u] = p < cached  ? cache[p]
                 : p < packs ? LoadRaw<E>(a.logits, begin + p * kPack, a.padded - p * kPack)
                             : Raw<E>{};
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int p = first + u * threads;
        if (p >= all_packs) break;
        Floats x = ToFloats<E>(a.logits, raw[u]);
        if ((p + 1) * kPack > a.vocab) MaskFrom(x, a.vocab - p * kPack);
#pragma unroll
        for (int i = 0; i < kPack; ++i) x.v[i] = __fmul_rn(Exp(__fsub_rn(x.v[i], softmax.max)), inverse_sum);
        if (p == target / kPack) {
#pragma unroll
          for (int i = 0; i < kPack; ++i)
            if (i == target % kPack) x.v[i] = __fsub_rn(x.v[i], 1.0f);
        }
#pragma unroll
        for (int i = 0; i < kPack; ++i) x.v[i] = __fmul_rn(x.v[i], scale);
        // Padding is zero whatever the row holds, NaN included.
        if ((p + 1) * kPack > a.vocab)
#pragma unroll
          for (int i = 0; i < kPack; ++i)
            if (p * kPack + i >= a.vocab) x.v[i] = 0;
        Store<E>(a.logits, begin + p * kPack, a.padded - p * kPack, x);
      }
    }
  }
}

// loss_sum (=|+=) sum of row_loss.
__global__ void __launch_bounds__(1024) LossSumKernel(const CrossEntropyArgs a) {
  __shared__ double shared[32];
  double sum = 0;
#pragma unroll 4
  for (int64_t r = threadIdx.x; r < a.rows; r += blockDim.x) sum = __dadd_rn(sum, a.row_loss[r]);
  sum = BlockSum(sum, shared);
  if (threadIdx.x > 0) return;
  if (a.targets.scalars->inject_loss_nan != 0) sum = NAN;
  *a.loss_sum = a.add_loss ? __dadd_rn(*a.loss_sum, sum) : sum;
}

template <Elements E, bool kGradient>
void LaunchRows(const CrossEntropyArgs& args, const Launch& launch) {
  const int64_t packs = Packs(args.padded);
  const auto threads = static_cast<unsigned>(std::min<int64_t>(kMaxThreads, CeilDiv(packs, kWarp) * kWarp));
  constexpr int64_t kRawBytes = sizeof(Raw<E>);
  const int64_t cached = kGradient ? std::min(Packs(args.vocab), kCacheBytes / kRawBytes) : 0;
  const auto kernel = CrossEntropyKernel<E, kGradient>;
  if (kGradient)
    MR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kCacheBytes));
  kernel<<<static_cast<unsigned>(args.rows), threads, static_cast<size_t>(cached * kRawBytes),
           launch.stream>>>(args, static_cast<int>(cached));
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
    MR_CUDA_LAUNCHED();
  }
  LossSumKernel<<<1, 1024, 0, launch.stream>>>(args);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace::cuda
