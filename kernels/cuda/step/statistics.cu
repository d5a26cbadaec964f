#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/flat.cuh"
#include "kernels/cuda/last_block.cuh"
#include "kernels/cuda/step/statistics_launch.h"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// Units that a thread loads before it looks at the first.
constexpr int kScanUnroll = 8;
// Blocks of a scan on a multiprocessor. Named in launch bounds as well: without, the compiler saves
// registers for more blocks than there are and waits for one load before it issues the next.
constexpr int kScanBlocksPerSm = 4;

template <Elements E>
inline constexpr uint32_t kExponent = E == Elements::kBF16  ? 0x7f80u
                                      : E == Elements::kF16 ? 0x7c00u
                                                            : 0x7f800000u;
template <Elements E>
inline constexpr uint32_t kQuietNaN = E == Elements::kBF16  ? 0x7fc0u
                                      : E == Elements::kF16 ? 0x7e00u
                                                            : 0x7fc00000u;

// Elements of a unit whose exponent bits are all ones.
template <Elements E, int W>
__device__ __forceinline__ int BadIn(const Unit<E, W>& unit) {
  constexpr uint32_t kOnes = kExponent<E>;
  if constexpr (W == 1) {
    return (unit & kOnes) == kOnes;
  } else {
    const uint32_t w[4] = {unit.x, unit.y, unit.z, unit.w};
    int bad = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      constexpr uint32_t kUpper = kIsShort<E> ? kOnes << 16 : kOnes;
      if constexpr (kIsShort<E>) bad += (w[i] & kOnes) == kOnes;
      bad += (w[i] & kUpper) == kUpper;
    }
    return bad;
  }
}

__device__ __forceinline__ void AddBad(double* bad_count, bool accumulate,
                                       unsigned long long found) {
  const auto bad = static_cast<double>(found);
  *bad_count = accumulate ? __dadd_rn(*bad_count, bad) : bad;
}

// W: 16 bytes of elements, or 1.
template <Elements E, int W>
__global__ void __launch_bounds__(kFlatThreads, kScanBlocksPerSm)
    FiniteScanKernel(const FiniteScanArgs a) {
  BeginKernel();
  __shared__ int of_warp[kFlatThreads / kWarp];
  const int64_t units = a.n / W, stride = int64_t{gridDim.x} * kFlatThreads;
  // First unit of this thread.
  const int64_t own = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x;
  int bad = 0;
  for (int64_t first = own; first < units; first += stride * kScanUnroll) {
    Unit<E, W> unit[kScanUnroll];
#pragma unroll
    for (int u = 0; u < kScanUnroll; ++u)
      unit[u] = first + u * stride < units ? LoadUnit<E, W>(a.x, first + u * stride) : Unit<E, W>{};
#pragma unroll
    for (int u = 0; u < kScanUnroll; ++u) bad += BadIn<E, W>(unit[u]);
  }
  // Elements that no whole unit holds.
  const int64_t last = units * W + own;
  if (W > 1 && last < a.n) bad += BadIn<E, 1>(LoadUnit<E, 1>(a.x, last));

  if (a.scalars->inject_grad_unit == a.unit) {
    // By the thread that has read the element, and not before that.
    __threadfence_block();
    const int64_t unit = a.inject_index / W;
    const int64_t owner = unit < units ? unit % stride : a.inject_index - units * W;
    if (own == owner) {
      bad += 1 - BadIn<E, 1>(LoadUnit<E, 1>(a.x, a.inject_index));
      StoreUnit<E, 1>(a.x, a.inject_index, static_cast<Unit<E, 1>>(kQuietNaN<E>));
    }
  }

  bad = __reduce_add_sync(0xffffffffu, bad);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = bad;
  __syncthreads();
  unsigned long long found = 0;
  if (threadIdx.x == 0)
    for (const int of : of_warp) found += static_cast<unsigned long long>(of);
  if (IsLastBlock(a.ticket, found) && threadIdx.x == 0) AddBad(a.bad_count, a.accumulate, found);
}

// The elements of a quad, the absent ones zero.
template <Elements E, bool kWide>
__device__ __forceinline__ void LoadQuad(const Rows& x, int64_t quad, int64_t n, float (&v)[4]) {
  if constexpr (kWide) {
    Widen<E, 4>(LoadUnit<E, 4>(x, quad), v);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float one[1] = {0.0f};
      if (quad * 4 + i < n) Widen<E, 1>(LoadUnit<E, 1>(x, quad * 4 + i), one);
      v[i] = one[0];
    }
  }
}

__device__ __forceinline__ void AddSquares(const float (&v)[4], double (&sum)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    sum[i] = __fma_rn(double{v[i]}, double{v[i]}, sum[i]);  // exact squares
}

// Elements that are not finite of the quads that a thread of SumSquaresKernel has.
template <Elements E>
__device__ __forceinline__ int BadOf(const SumSquaresArgs& a, int64_t own, int64_t stride) {
  int bad = 0;
#pragma unroll 1
  for (int64_t quad = own; quad * 4 < a.n; quad += stride) {
    float v[4];
    LoadQuad<E, false>(a.x, quad, a.n, v);
#pragma unroll
    for (int i = 0; i < 4; ++i) bad += !isfinite(v[i]);
  }
  return bad;
}

// Thread t of block b: quads b * threads + t, then every (blocks * threads)-th. The last block adds
// up the partial sums: its thread t those of blocks t, t + threads, ... A sum of squares of floats
// is finite in double if all of them are: only else a thread of a scan counts.
template <Elements E, bool kWide>
__global__ void __launch_bounds__(kSumSquaresThreads, kScanBlocksPerSm)
    SumSquaresKernel(const SumSquaresArgs a) {
  BeginKernel();
  __shared__ double shared[32];
  const int64_t whole = a.n / 4, stride = int64_t{gridDim.x} * kSumSquaresThreads;
  const int64_t own = int64_t{blockIdx.x} * kSumSquaresThreads + threadIdx.x;
  double sum[4] = {};  // of elements i with i % 4
  for (int64_t first = own; first < whole; first += stride * kScanUnroll) {
    float v[kScanUnroll][4];
#pragma unroll
    for (int u = 0; u < kScanUnroll; ++u) {
      if (first + u * stride < whole) {
        LoadQuad<E, kWide>(a.x, first + u * stride, a.n, v[u]);
      } else {
        v[u][0] = v[u][1] = v[u][2] = v[u][3] = 0.0f;
      }
    }
#pragma unroll
    for (int u = 0; u < kScanUnroll; ++u) AddSquares(v[u], sum);
  }
  if (a.n % 4 != 0 && whole % stride == own) {
    float v[4];
    LoadQuad<E, false>(a.x, whole, a.n, v);
    AddSquares(v, sum);
  }
  // By the thread that has read the element, as a scan does it.
  if (a.scalars != nullptr && a.scalars->inject_grad_unit == a.unit &&
      min(a.inject_index / 4, whole) % stride == own) {
    __threadfence_block();
    StoreUnit<E, 1>(a.x, a.inject_index, static_cast<Unit<E, 1>>(kQuietNaN<E>));
    sum[0] = __longlong_as_double(0x7ff8000000000000);
  }
  const double mine = __dadd_rn(__dadd_rn(sum[0], sum[1]), __dadd_rn(sum[2], sum[3]));
  double total = BlockSum(mine, shared);
  unsigned long long found = 0;
  if (a.bad_count != nullptr && __syncthreads_or(!isfinite(mine)))
    found = static_cast<unsigned long long>(
        BlockSum(isfinite(mine) ? 0.0 : BadOf<E>(a, own, stride), shared));
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) a.partials[blockIdx.x] = total;
    if (!IsLastBlock(a.ticket, found)) return;
    total = 0;
    for (unsigned b = threadIdx.x; b < gridDim.x; b += kSumSquaresThreads)
      total = __dadd_rn(total, __ldcg(a.partials + b));
    total = BlockSum(total, shared);
  }
  if (threadIdx.x > 0) return;
  *a.out = total;
  if (a.bad_count != nullptr) AddBad(a.bad_count, a.accumulate, found);
}

// Where the first non-finite value came from: the lowest rank with a bad loss, else the lowest
// (unit, rank) with bad elements.
__device__ void FindOffender(const StepStatsArgs& a, StepScalars& s) {
  const int64_t units = a.attrs.units, width = a.row.width;
  s.offender_unit = -2, s.offender_rank = -1;
  for (int64_t rank = 0; rank < a.world; ++rank) {
    bool finite = true;
    for (int64_t l = 0; l < a.attrs.losses.count; ++l)
      finite &= isfinite(a.rows[rank * width + a.row.losses + l]);
    if (finite) continue;
    s.offender_unit = -1, s.offender_rank = static_cast<int32_t>(rank);
    return;
  }
  for (int64_t unit = 0; unit < units; ++unit) {
    for (int64_t rank = 0; rank < a.world; ++rank) {
      if (a.rows[rank * width + a.row.bad_counts + unit] == 0) continue;
      s.offender_unit = unit, s.offender_rank = static_cast<int32_t>(rank);
      return;
    }
  }
}

// What the step leaves to the next one.
__device__ void ScaleNext(const LossScaling& scaling, bool loss_is_finite, StepScalars& s) {
  const double down = __dmul_rn(s.loss_scale, scaling.backoff_factor),
               up = __dmul_rn(s.loss_scale, scaling.growth_factor);
  s.next_loss_scale = s.loss_scale;
  s.scaled_down = s.applied == 0 && loss_is_finite && down >= kLeastLossScale ? 1 : 0;
  if (s.scaled_down != 0) {
    s.next_loss_scale = static_cast<float>(down);
    s.scale_downs += 1;
    s.clean_steps = 0;
  } else if (s.applied != 0) {
    s.clean_steps += 1;
    if (s.clean_steps < scaling.growth_interval) return;
    if (up <= kMostLossScale) s.next_loss_scale = static_cast<float>(up);
    s.clean_steps = 0;
  }
}

// One block. Sums are formed by one thread, one addition after the other, as the CPU does; the
// others bring the values to it.
constexpr int kStatsThreads = 256;

__global__ void __launch_bounds__(kStatsThreads) StepStatsKernel(const StepStatsArgs a) {
  BeginKernel();
  __shared__ double value[kStatsThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t units = a.attrs.units, width = a.row.width;
  bool bad = false;
  for (int64_t i = thread; i < a.world * units; i += kStatsThreads)
    bad |= !(a.rows[i / units * width + a.row.bad_counts + i % units] == 0);
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
  double loss_sum = 0;
  for (int64_t l = 0; l < a.attrs.losses.count; ++l) {
    const double of_all =
        ordered_sum(a.world, [&](int64_t rank) { return a.rows[rank * width + a.row.losses + l]; });
    loss_sum = __dadd_rn(loss_sum, __dmul_rn(a.attrs.losses.weight[l], of_all));
  }
  const double squares = ordered_sum(a.attrs.shard_world * units, [&](int64_t i) {
    return a.rows[i / units * width + a.row.sum_squares + i % units];
  });
  if (thread > 0) return;

  StepScalars& s = *a.scalars;
  const double loss = __dmul_rn(loss_sum, s.inv_valid_tokens),
               norm = __ddiv_rn(__dsqrt_rn(squares), s.loss_scale);
  const bool finite = isfinite(loss) && !bad && isfinite(norm);
  s.loss = loss;
  s.grad_norm = norm;
  const bool spike = finite && s.max_loss > 0 && loss > s.max_loss;
  int64_t overflown = 0;  // the first block that is
  while (overflown < a.blocks && a.overflow[overflown] == 0) ++overflown;
  const bool overflow = overflown < a.blocks, applied = finite && !spike && !overflow;
  s.applied = applied ? 1 : 0;
  const double clip =
      applied && a.attrs.clip > 0 && norm > a.attrs.clip ? __ddiv_rn(a.attrs.clip, norm) : 1.0;
  s.clip_scale = __ddiv_rn(clip, s.loss_scale);
  if (overflow)
    s.offender_unit = kOffenderOverflow - overflown, s.offender_rank = -1;
  else if (finite)
    s.offender_unit = spike ? kOffenderSpike : kOffenderNone, s.offender_rank = -1;
  else
    FindOffender(a, s);
  if (applied)
    s.adam_t += 1;
  else
    s.skipped += 1;
  if (a.attrs.scaling.init_scale > 0)
    ScaleNext(a.attrs.scaling, isfinite(loss) && !spike && !overflow, s);
}

}  // namespace

void LaunchFiniteScan(const FiniteScanArgs& args, const Launch& launch) {
  if (args.n == 0) {
    if (!args.accumulate)
      MR_CUDA(cudaMemsetAsync(args.bad_count, 0, sizeof(double), launch.stream));
    return;
  }
  const auto run = [&]<Elements E, int W>() {
    const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(
        CeilDiv(args.n / W, kFlatThreads), 1, int64_t{launch.sms} * kScanBlocksPerSm));
    LaunchKernel(launch, blocks, kFlatThreads, 0, FiniteScanKernel<E, W>, args);
  };
  WithElementsOf(args.x, [&]<Elements E>() {
    args.x.wide ? run.template operator()<E, kIsShort<E> ? 8 : 4>()
                : run.template operator()<E, 1>();
  });
}

void LaunchSumSquares(const SumSquaresArgs& args, const Launch& launch) {
  if (args.blocks == 0) {
    MR_CUDA(cudaMemsetAsync(args.out, 0, sizeof(double), launch.stream));
    if (args.bad_count != nullptr && !args.accumulate)
      MR_CUDA(cudaMemsetAsync(args.bad_count, 0, sizeof(double), launch.stream));
    return;
  }
  const auto run = [&]<Elements E, bool kWide>() {
    LaunchKernel(launch, args.blocks, kSumSquaresThreads, 0, SumSquaresKernel<E, kWide>, args);
  };
  WithElementsOf(args.x, [&]<Elements E>() {
    args.x.wide ? run.template operator()<E, true>() : run.template operator()<E, false>();
  });
}

void LaunchStepStats(const StepStatsArgs& args, const Launch& launch) {
  LaunchKernel(launch, 1, kStatsThreads, 0, StepStatsKernel, args);
}

}  // namespace millrace::cuda
