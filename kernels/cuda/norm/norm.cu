#include "kernels/cuda/magnitude.cuh"
#include "kernels/cuda/norm/norm_forward.cuh"
#include "kernels/cuda/norm/norm_launch.h"
#include "kernels/cuda/norm/norm_rows.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kForwardThreads = 256;          // or a row's warps, if those are more
constexpr int64_t kFewBlocks = 128;           // fewer than a GPU has multiprocessors
static_assert(kForwardThreads == 8 * kWarp);  // Group::Sync

// kWhole: every pack is, and each is one access; rows have elements of 16 bits.
template <Elements E, bool kWhole>
__device__ __forceinline__ Raw<E> LoadPack(const Rows& rows, int64_t at, int n) {
  if constexpr (kWhole) {
    static_assert(kIsShort<E>);
    return {*reinterpret_cast<const uint4*>(reinterpret_cast<const uint16_t*>(rows.data) + at)};
  } else {
    return LoadRaw<E>(rows, at, n);
  }
}
template <Elements E, bool kWhole>
__device__ __forceinline__ void StorePack(const Rows& rows, int64_t at, int n, const Raw<E>& raw) {
  if constexpr (kWhole)
    *reinterpret_cast<uint4*>(reinterpret_cast<uint16_t*>(rows.data) + at) = raw.low;
  else
    StoreRaw<E>(rows, at, n, raw);
}
// Of a weight or bias, of any dtype of the mix.
template <Elements Mix, bool kWhole>
__device__ __forceinline__ Raw<Mix> LoadColumns(const Rows& rows, int c, int n) {
  if constexpr (!kWhole) return LoadRaw<Mix>(rows, c, n);
  Raw<Mix> raw{};
  const bool is_short = AreShort<Mix>(rows);
  const uint4* const p = reinterpret_cast<const uint4*>(rows.data + c * (is_short ? 2 : 4));
  raw.low = p[0];
  if (!is_short) raw.high = p[1];
  return raw;
}
// Nobody's read: into the second cache, while the kernel before runs. Once a line of 128 bytes.
template <Elements Mix>
__device__ __forceinline__ void Fetch(const Rows& rows, int c) {
  const int at = c * (AreShort<Mix>(rows) ? 2 : 4);
  if (rows.data != nullptr && at % 128 == 0)
    asm volatile("prefetch.global.L2 [%0];" : : "l"(rows.data + at));
}

// out = (s - mean) * rstd * weight + bias, one row per group. With kWhole weights are on their way
// before the sums, and there is half of the code: in a step that decodes one row, a kernel takes as
// long as what it waits for, its instructions among it. With many rows the registers that hold
// weights are those of other blocks: 65536 rows of 768 take 3.6 times as long (H100). The
// bits are the same. kMagnitude: there may be one.
template <Elements E, int P, bool kWhole, bool kMagnitude>
__global__ void __launch_bounds__(512) NormKernel(const NormArgs a) {
  constexpr Elements kMix = kMixOf<E>;  // weights'
  if constexpr (kWhole) {
    const Group group(a.shape.warps);
    // By one group of a block: where each thread asked, 1024 rows of 384 took 5.5 us, not 2.9.
    const bool fetches = group.index == 0;
#pragma unroll
    for (int k = 0; k < P; ++k) {
      if (!fetches || group.column(k) >= a.columns) break;
      Fetch<kMix>(a.weight, group.column(k));
      Fetch<kMix>(a.bias, group.column(k));
    }
  }
  BeginKernel();
  const Group group(a.shape.warps);
  const int64_t row = int64_t{blockIdx.x} * group.count + group.index;
  const bool active = row < a.rows;

  Raw<E> x[P], residual[P];
#pragma unroll
  for (int k = 0; k < P; ++k) {
    const int c = group.column(k);
    const bool mine = active && c < a.columns;
    x[k] = mine ? LoadPack<E, kWhole>(a.x, row * a.x.stride + c, a.columns - c) : Raw<E>{};
    if (a.residual.data != nullptr)
      residual[k] =
          mine ? LoadPack<E, kWhole>(a.residual, row * a.residual.stride + c, a.columns - c)
               : Raw<E>{};
  }
  Raw<kMix> weights[kWhole ? P : 1], biases[kWhole ? P : 1];
  if constexpr (kWhole) {
#pragma unroll
    for (int k = 0; k < P; ++k) {
      const int c = group.column(k);
      if (c >= a.columns) break;
      weights[k] = LoadColumns<kMix, kWhole>(a.weight, c, kPack);
      if (a.bias.data != nullptr) biases[k] = LoadColumns<kMix, kWhole>(a.bias, c, kPack);
    }
  }
  Floats s[P];
#pragma unroll
  for (int k = 0; k < P; ++k) {
    s[k] = ToFloats<E>(a.x, x[k]);
    if (a.residual.data == nullptr) continue;
    const int c = group.column(k);
    const Raw<E> rounded = FromFloats<E>(a.sum, Plus(s[k], ToFloats<E>(a.residual, residual[k])));
    s[k] = ToFloats<E>(a.sum, rounded);
    if (active && c < a.columns)
      StorePack<E, kWhole>(a.sum, row * a.sum.stride + c, a.columns - c, rounded);
  }

  const RowStatistics of =
      StatisticsOf<kWhole>(s, group, {a.columns, a.per_column, a.eps, a.layer},
                           AreShort<E>(a.residual.data != nullptr ? a.sum : a.x));
  StoredMagnitude<E> magnitude;
  if constexpr (!kMagnitude)
    if (!active) return;
  if (active && group.thread == 0) {
    if (a.mean != nullptr) a.mean[row] = of.mean;
    if (a.rstd != nullptr) a.rstd[row] = of.rstd;
  }
#pragma unroll
  for (int k = 0; k < P; ++k) {
    const int c = group.column(k);
    if (!active || c >= a.columns) break;
    if constexpr (!kWhole) weights[0] = LoadColumns<kMix, false>(a.weight, c, a.columns - c);
    Floats y = Normed(s[k], of, ToFloats<kMix>(a.weight, weights[kWhole ? k : 0]));
    if (a.bias.data != nullptr) {
      if constexpr (!kWhole) biases[0] = LoadColumns<kMix, false>(a.bias, c, a.columns - c);
      y = Plus(y, ToFloats<kMix>(a.bias, biases[kWhole ? k : 0]));
    }
    const Raw<E> rounded = FromFloats<E>(a.out, y);
    StorePack<E, kWhole>(a.out, row * a.out.stride + c, a.columns - c, rounded);
    if constexpr (kMagnitude)
      if (a.magnitude != nullptr) magnitude.Add(a.out, rounded, kWhole ? kPack : a.columns - c);
  }
  if constexpr (kMagnitude)
    if (a.magnitude != nullptr) magnitude.Raise(a.magnitude);
}

}  // namespace

void LaunchNorm(const NormArgs& args, Elements elements, const Launch& launch) {
  if (args.rows == 0 || args.columns == 0) return;
  const int threads = max(kForwardThreads, args.shape.warps * kWarp);
  const int64_t blocks = CeilDiv(args.rows, threads / (args.shape.warps * kWarp));
  bool whole = blocks <= kFewBlocks && args.columns % kPack == 0;
  for (const Rows* rows : {&args.x, &args.residual, &args.sum, &args.out, &args.weight, &args.bias})
    whole &= rows->data == nullptr || rows->wide;
  // A few blocks fit beside those of the kernel before. One that waits there for long, as of one
  // row, costs more than it gains.
  Launch beside = launch;
  if (args.rows > 1 && launch.early == EarlyLaunch::kEnd) beside.early = EarlyLaunch::kBegin;
  DispatchRows(elements, args.shape.packs, [&]<Elements E, int P>() {
    if constexpr (E == Elements::kBF16) {
      if (whole)
        return LaunchKernel(beside, static_cast<unsigned>(blocks), threads, 0,
                            args.magnitude != nullptr ? NormKernel<E, P, true, true>
                                                      : NormKernel<E, P, true, false>,
                            args);
    }
    LaunchKernel(launch, static_cast<unsigned>(blocks), threads, 0, NormKernel<E, P, false, true>,
                 args);
  });
}

}  // namespace millrace::cuda
