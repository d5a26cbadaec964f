// The arithmetic of a norm's forward, of a row whose packs a group's threads hold (norm_rows.cuh):
// kernels that form a row by these functions, with as many warps to it (RowShapeOf), give it the
// same bits.
#pragma once

#include "kernels/cuda/norm/norm_rows.cuh"
#include "kernels/cuda/pack.cuh"

namespace millrace::cuda {

struct NormOfRow {
  int columns;
  double per_column;  // 1 / columns
  float eps;
  bool layer;  // else rms
};
struct RowStatistics {
  float mean, rstd;
};

// sum / columns without a division: the quotient's remainder is divided once more.
__device__ __forceinline__ double MeanOf(double sum, const NormOfRow& norm) {
  const double mean = __dmul_rn(sum, norm.per_column);
  return __fma_rn(__fma_rn(-mean, static_cast<double>(norm.columns), sum), norm.per_column, mean);
}

__device__ __forceinline__ Floats Plus(const Floats& a, const Floats& b) {
  Floats sum;
#pragma unroll
  for (int i = 0; i < kPack; ++i) sum.v[i] = __fadd_rn(a.v[i], b.v[i]);
  return sum;
}

// Of a row's packs s, zeros beyond its columns; every thread of the group calls it. Formed in
// double and rounded once: every use of a row shares the error of its two statistics.
// kWhole        columns are a multiple of kPack
// short_values  s is of 16 bits
template <bool kWhole, int P, class G>
__device__ __forceinline__ RowStatistics StatisticsOf(Floats (&s)[P], const G& group,
                                                      const NormOfRow& norm, bool short_values) {
  double exact_mean = 0;
  if (norm.layer) {
    double sum[1] = {};
#pragma unroll
    for (int k = 0; k < P; ++k) {
      double part = 0;
#pragma unroll
      for (int i = 0; i < kPack; ++i) part = __dadd_rn(part, s[k].v[i]);
      sum[0] = __dadd_rn(sum[0], part);
    }
    GroupSum(sum, group, 0);
    exact_mean = MeanOf(sum[0], norm);
  }
  const float mean = __double2float_rn(exact_mean);
  double squares[1] = {};
  // A conversion to double takes as long as eight additions in f32. Where the values are
  // of 16 bits, the squares of a pack are added in f32: their deviations are from a mean whose
  // rounding is made up for below.
#pragma unroll
  for (int k = 0; k < P; ++k) {
    const int c = group.column(k);
    Forget(s[k]);  // its conversions to double
    double part = 0;
    if (short_values) {
      Floats square;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const bool inside = (kWhole ? c : c + i) < norm.columns;
        const float deviation = inside ? __fsub_rn(s[k].v[i], mean) : 0.0f;
        square.v[i] = __fmul_rn(deviation, deviation);
      }
      part = SumOfPack(square);
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const double deviation = c + i < norm.columns ? __dsub_rn(s[k].v[i], exact_mean) : 0.0;
        part = __fma_rn(deviation, deviation, part);
      }
    }
    squares[0] = __dadd_rn(squares[0], part);
  }
  GroupSum(squares, group, 1);
  double variance = MeanOf(squares[0], norm);
  if (short_values) {
    const double off = __dsub_rn(exact_mean, mean);
    variance = __fma_rn(-off, off, variance);
    if (variance < 0) variance = 0;
  }
  return {mean, __double2float_rn(rsqrt(__dadd_rn(variance, norm.eps)))};
}

// A pack without its bias.
__device__ __forceinline__ Floats Normed(const Floats& s, const RowStatistics& of,
                                         const Floats& weight) {
  Floats y;
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    y.v[i] = __fmul_rn(__fmul_rn(__fsub_rn(s.v[i], of.mean), of.rstd), weight.v[i]);
  return y;
}

}  // namespace millrace::cuda
