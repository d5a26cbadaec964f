#include <algorithm>

#include "kernels/cuda/flat.cuh"
#include "kernels/cuda/statistics_launch.h"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {
namespace {

// Blocks per multiprocessor of a scan: its reads alone fill the memory's queues.
constexpr int kScanBlocksPerSm = 8;

// Elements of a pack whose exponent bits are all ones. The zeros that fill the last pack are finite.
template <Elements E>
__device__ __forceinline__ int BadIn(const Raw<E>& raw) {
  int bad = 0;
  if constexpr (E == Elements::kBF16) {
    const uint32_t w[4] = {raw.low.x, raw.low.y, raw.low.z, raw.low.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bad += (w[i] & 0x7f80u) == 0x7f80u;
      bad += (w[i] & 0x7f800000u) == 0x7f800000u;
    }
  } else {
    const uint32_t w[kPack] = {raw.low.x,  raw.low.y,  raw.low.z,  raw.low.w,
                               raw.high.x, raw.high.y, raw.high.z, raw.high.w};
#pragma unroll
    for (int i = 0; i < kPack; ++i) bad += (w[i] & 0x7f800000u) == 0x7f800000u;
  }
  return bad;
}

template <Elements E>
__global__ void __launch_bounds__(kFlatThreads) FiniteScanKernel(const FiniteScanArgs a) {
  const bool inject = a.scalars->inject_grad_unit == a.unit;
  const int64_t packs = (a.n + kPack - 1) / kPack, inject_pack = a.inject_index / kPack;
  const int64_t stride = int64_t{gridDim.x} * kFlatThreads;
  int bad = 0;
  for (int64_t first = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x; first < packs;
       first += stride * kFlatUnroll) {
    Raw<E> raw[kFlatUnroll];
#pragma unroll
    for (int u = 0; u < kFlatUnroll; ++u) {
      const int64_t p = first + u * stride;
      if (p >= packs) break;
      if (inject && p == inject_pack) {
        if constexpr (E == Elements::kBF16)
          reinterpret_cast<uint16_t*>(a.x.data)[a.inject_index] = 0x7fc0u;
        else
          reinterpret_cast<uint32_t*>(a.x.data)[a.inject_index] = 0x7fc00000u;
        __threadfence_block();  // the load below sees it
      }
      raw[u] = LoadRaw<E>(a.x, p * kPack, Left(a.n, p * kPack));
    }
#pragma unroll
    for (int u = 0; u < kFlatUnroll; ++u)
      if (first + u * stride < packs) bad += BadIn<E>(raw[u]);
  }
  bad = __reduce_add_sync(0xffffffffu, bad);
  if (bad > 0 && threadIdx.x % kWarp == 0) atomicAdd(a.bad_count, static_cast<double>(bad));
}

// Block b: packs b * threads + t, then every (blocks * threads)-th.
template <Elements E>
__global__ void __launch_bounds__(kSumSquaresThreads)
    SumSquaresKernel(const Rows x, const int64_t n, double* partials) {
  __shared__ double shared[32];
  const int64_t packs = (n + kPack - 1) / kPack, stride = int64_t{gridDim.x} * kSumSquaresThreads;
  double sum[4] = {};  // of elements i with i % 4
  for (int64_t first = int64_t{blockIdx.x} * kSumSquaresThreads + threadIdx.x; first < packs;
       first += stride * kFlatUnroll) {
    Raw<E> raw[kFlatUnroll];
#pragma unroll
    for (int u = 0; u < kFlatUnroll; ++u) {
      const int64_t p = first + u * stride;
      raw[u] = p < packs ? LoadRaw<E>(x, p * kPack, Left(n, p * kPack)) : Raw<E>{};
    }
#pragma unroll
    for (int u = 0; u < kFlatUnroll; ++u) {
      const Floats f = ToFloats<E>(x, raw[u]);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const double v = f.v[i];
        sum[i % 4] = __fma_rn(v, v, sum[i % 4]);  // v * v is exact in double
      }
    }
  }
  const double total = BlockSum(__dadd_rn(__dadd_rn(sum[0], sum[1]), __dadd_rn(sum[2], sum[3])), shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

__global__ void __launch_bounds__(256)
    SumPartialsKernel(const double* partials, const int blocks, double* out) {
  __shared__ double shared[32];
  double sum = 0;
  for (int b = static_cast<int>(threadIdx.x); b < blocks; b += static_cast<int>(blockDim.x))
    sum = __dadd_rn(sum, partials[b]);
  sum = BlockSum(sum, shared);
  if (threadIdx.x == 0) *out = sum;
}

// Where the first non-finite value came from: the lowest rank with a bad loss, else the lowest (unit, rank)
// with bad elements.
__device__ void FindOffender(const StepStatsArgs& a, StepScalars& s) {
  const int64_t units = a.attrs.units, width = 2 * units + 1;
  s.offender_unit = -2, s.offender_rank = -1;
  for (int64_t rank = 0; rank < a.world; ++rank) {
    if (isfinite(a.rows[rank * width + 2 * units])) continue;
    s.offender_unit = -1, s.offender_rank = rank;
    return;
  }
  for (int64_t unit = 0; unit < units; ++unit) {
    for (int64_t rank = 0; rank < a.world; ++rank) {
      if (a.rows[rank * width + units + unit] == 0) continue;
      s.offender_unit = unit, s.offender_rank = rank;
      return;
    }
  }
}

// One block. Sums are formed by one thread, one addition after the other, as the CPU does; the others bring
// the values to it.
constexpr int kStatsThreads = 256;

__global__ void __launch_bounds__(kStatsThreads) StepStatsKernel(const StepStatsArgs a) {
  __shared__ double value[kStatsThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t units = a.attrs.units, width = 2 * units + 1;
  bool bad = false;
  for (int64_t i = thread; i < a.world * units; i += kStatsThreads)
    bad |= !(a.rows[i / units * width + units + i % units] == 0);
  bad = __syncthreads_or(bad);

  // sum of at(i) for i < n, in order.
  const auto ordered_sum = [&](int64_t n, auto at) {
    double sum = 0;
    for (int64_t base = 0; base < n; base += kStatsThreads) {
      if (base + thread < n) value[thread] = at(base + thread);
      __syncthreads();
      const int count = static_cast<int>(min(int64_t{kStatsThreads}, n - base));
      if (thread == 0) {
#pragma unroll 8
        for (int i = 0; i < count; ++i) sum = __dadd_rn(sum, value[i]);
      }
      __syncthreads();
    }
    return sum;
  };
  const double loss_sum =
      ordered_sum(a.world, [&](int64_t rank) { return a.rows[rank * width + 2 * units]; });
  const double squares = ordered_sum(a.attrs.shard_world * units,
                                     [&](int64_t i) { return a.rows[i / units * width + i % units]; });
  if (thread > 0) return;

  StepScalars& s = *a.scalars;
  const double loss = __dmul_rn(loss_sum, s.inv_valid_tokens), norm = __dsqrt_rn(squares);
  const bool finite = isfinite(loss) && !bad && isfinite(norm);
  s.loss = loss;
  s.grad_norm = norm;
  s.finite = finite ? 1 : 0;
  s.clip_scale = finite && a.attrs.clip > 0 && norm > a.attrs.clip ? __ddiv_rn(a.attrs.clip, norm) : 1.0;
  if (finite) {
    s.offender_unit = -2, s.offender_rank = -1;
    s.adam_t += 1;
  } else {
    FindOffender(a, s);
    s.skipped += 1;
  }
}

}  // namespace

void LaunchFiniteScan(const FiniteScanArgs& args, const Launch& launch) {
  if (!args.accumulate) MR_CUDA(cudaMemsetAsync(args.bad_count, 0, sizeof(double), launch.stream));
  if (args.n == 0) return;
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>(CeilDiv(Packs(args.n), kFlatBlockPacks), int64_t{launch.sms} * kScanBlocksPerSm));
  if (args.x.bf16)
    FiniteScanKernel<Elements::kBF16><<<blocks, kFlatThreads, 0, launch.stream>>>(args);
  else
    FiniteScanKernel<Elements::kF32><<<blocks, kFlatThreads, 0, launch.stream>>>(args);
  MR_CUDA_LAUNCHED();
}

void LaunchSumSquares(const Rows& x, int64_t n, double* partials, int blocks, double* out,
                      const Launch& launch) {
  double* const sums = blocks > 1 ? partials : out;
  if (blocks == 0) {
    MR_CUDA(cudaMemsetAsync(out, 0, sizeof(double), launch.stream));
    return;
  }
  if (x.bf16)
    SumSquaresKernel<Elements::kBF16><<<blocks, kSumSquaresThreads, 0, launch.stream>>>(x, n, sums);
  else
    SumSquaresKernel<Elements::kF32><<<blocks, kSumSquaresThreads, 0, launch.stream>>>(x, n, sums);
  MR_CUDA_LAUNCHED();
  if (blocks == 1) return;
  SumPartialsKernel<<<1, 256, 0, launch.stream>>>(partials, blocks, out);
  MR_CUDA_LAUNCHED();
}

void LaunchStepStats(const StepStatsArgs& args, const Launch& launch) {
  StepStatsKernel<<<1, kStatsThreads, 0, launch.stream>>>(args);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace::cuda
