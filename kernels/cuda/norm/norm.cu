#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm/norm_launch.h"
#include "kernels/cuda/norm/norm_rows.cuh"

namespace millrace::cuda {
namespace {

constexpr int kForwardThreads = 256;  // or a row's warps, if those are more

// sum / columns without a division: the quotient's remainder is divided once more.
__device__ __forceinline__ double Mean(double sum, const NormArgs& a) {
  const double mean = __dmul_rn(sum, a.per_column);
  return __fma_rn(__fma_rn(-mean, static_cast<double>(a.columns), sum), a.per_column, mean);
}

// out = (s - mean) * rstd * weight + bias, one row per group.
template <Elements E, int P>
__global__ void __launch_bounds__(512) NormKernel(const NormArgs a) {
  BeginKernel();
  const Group group(a.shape.warps);
  const int64_t row = int64_t{blockIdx.x} * group.count + group.index;
  const bool active = row < a.rows;

  Raw<E> x[P], residual[P];
#pragma unroll
  for (int k = 0; k < P; ++k) {
    const int c = group.column(k);
    const bool mine = active && c < a.columns;
    x[k] = mine ? LoadRaw<E>(a.x, row * a.x.stride + c, a.columns - c) : Raw<E>{};
    if (a.residual.data != nullptr)
      residual[k] =
          mine ? LoadRaw<E>(a.residual, row * a.residual.stride + c, a.columns - c) : Raw<E>{};
  }
  Floats s[P];
#pragma unroll
  for (int k = 0; k < P; ++k) {
    s[k] = ToFloats<E>(a.x, x[k]);
    if (a.residual.data == nullptr) continue;
    const int c = group.column(k);
    const Floats r = ToFloats<E>(a.residual, residual[k]);
#pragma unroll
    for (int i = 0; i < kPack; ++i) s[k].v[i] = __fadd_rn(s[k].v[i], r.v[i]);
    const Raw<E> rounded = FromFloats<E>(a.sum, s[k]);
    s[k] = ToFloats<E>(a.sum, rounded);
    if (active && c < a.columns) StoreRaw<E>(a.sum, row * a.sum.stride + c, a.columns - c, rounded);
  }

  // Statistics in double, rounded once: every use of a row shares the error of its two statistics.
  double exact_mean = 0;
  if (a.layer) {
    double sum[1] = {};
#pragma unroll
    for (int k = 0; k < P; ++k) {
      double part = 0;
#pragma unroll
      for (int i = 0; i < kPack; ++i) part = __dadd_rn(part, s[k].v[i]);
      sum[0] = __dadd_rn(sum[0], part);
    }
    GroupSum(sum, group, 0);
    exact_mean = Mean(sum[0], a);
  }
  const float mean = __double2float_rn(exact_mean);
  double squares[1] = {};
  // A conversion to double takes as long as eight additions in f32. Where the values are
  // bf16, the squares of a pack are added in f32: their deviations are from a mean whose
  // rounding is made up for below.
  const bool short_values = IsBF16<E>(a.residual.data != nullptr ? a.sum : a.x);
#pragma unroll
  for (int k = 0; k < P; ++k) {
    const int c = group.column(k);
    Forget(s[k]);  // its conversions to double
    double part = 0;
    if (short_values) {
      Floats square;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float deviation = c + i < a.columns ? __fsub_rn(s[k].v[i], mean) : 0.0f;
        square.v[i] = __fmul_rn(deviation, deviation);
      }
      part = SumOfPack(square);
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const double deviation = c + i < a.columns ? __dsub_rn(s[k].v[i], exact_mean) : 0.0;
        part = __fma_rn(deviation, deviation, part);
      }
    }
    squares[0] = __dadd_rn(squares[0], part);
  }
  GroupSum(squares, group, 1);
  double variance = Mean(squares[0], a);
  if (short_values) {
    const double off = __dsub_rn(exact_mean, mean);
    variance = __fma_rn(-off, off, variance);
    if (variance < 0) variance = 0;
  }
  const float rstd = __double2float_rn(rsqrt(__dadd_rn(variance, a.eps)));
  if (!active) return;
  if (group.thread == 0) {
    if (a.mean != nullptr) a.mean[row] = mean;
    if (a.rstd != nullptr) a.rstd[row] = rstd;
  }
#pragma unroll
  for (int k = 0; k < P; ++k) {
    const int c = group.column(k);
    if (c >= a.columns) break;
    const Floats weight = Load<Elements::kAny>(a.weight, c, a.columns - c);
    Floats y;
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      y.v[i] = __fmul_rn(__fmul_rn(__fsub_rn(s[k].v[i], mean), rstd), weight.v[i]);
    if (a.bias.data != nullptr) {
      const Floats bias = Load<Elements::kAny>(a.bias, c, a.columns - c);
#pragma unroll
      for (int i = 0; i < kPack; ++i) y.v[i] = __fadd_rn(y.v[i], bias.v[i]);
    }
    Store<E>(a.out, row * a.out.stride + c, a.columns - c, y);
  }
}

}  // namespace

void LaunchNorm(const NormArgs& args, Elements elements, const Launch& launch) {
  if (args.rows == 0 || args.columns == 0) return;
  const int threads = max(kForwardThreads, args.shape.warps * kWarp);
  const int64_t blocks = CeilDiv(args.rows, threads / (args.shape.warps * kWarp));
  DispatchRows(elements, args.shape.packs, [&]<Elements E, int P>() {
    LaunchKernel(launch, static_cast<unsigned>(blocks), threads, 0, NormKernel<E, P>, args);
  });
}

}  // namespace millrace::cuda
