// Scales of FP8, and payloads by them (kernels/ops/fp8_ops.h), bit for bit what the CPU computes.
#pragma once

#include <cstdint>

#include "kernels/cuda/magnitude.cuh"
#include "kernels/ops/fp8_blocks.h"

namespace millrace::cuda {

// Of a block whose largest finite magnitude has these bits.
template <bool kPower>
__device__ __forceinline__ float ScaleFor(uint32_t most, float largest) {
  if (most == 0) return 1.0f;
  if constexpr (!kPower) return fmaxf(__fdiv_rn(__uint_as_float(most), largest), kLeastScale);
  // No quotient by 1.75 is so near above 1 that f32 rounds it to 1: exponents and fractions say
  // which power is not below it.
  const uint32_t by = __float_as_uint(largest);
  const int exponent = static_cast<int>(most >> 23) - static_cast<int>(by >> 23) + 127 +
                       ((most & 0x7fffffu) > (by & 0x7fffffu));
  return fmaxf(__uint_as_float(static_cast<uint32_t>(max(exponent, 1)) << 23), kLeastScale);
}

// Quotients by one scale, as __fdiv_rn has them where a payload depends on it.
template <bool kPowers>
class ScaleDivisor;

// Of a power of two: a product is as exact.
template <>
class ScaleDivisor<true> {
 public:
  ScaleDivisor() = default;
  __device__ explicit ScaleDivisor(float scale) {
    inverse_ = __uint_as_float((254u << 23) - __float_as_uint(scale));
  }
  __device__ __forceinline__ float Divide(float v) const { return __fmul_rn(v, inverse_); }

 private:
  float inverse_;
};

// Those below 2^-60 or so, of which FP8 has the sign alone, may have other bits. The scale is
// brought into [1, 2), so that remainders are exact: of two corrections the first leaves at most a
// unit in the last place, the second none (Markstein, IBM Journal of Research and Development 34,
// 1990).
template <>
class ScaleDivisor<false> {
 public:
  ScaleDivisor() = default;
  __device__ explicit ScaleDivisor(float scale) {
    const uint32_t bits = __float_as_uint(scale);
    shift_ = __uint_as_float((254u << 23) - (bits & kInfinity));
    scale_ = __uint_as_float((bits & 0x7fffffu) | 0x3f800000u);
    reciprocal_ = __frcp_rn(scale_);
  }
  __device__ __forceinline__ float Divide(float v) const {
    const float shifted = __fmul_rn(v, shift_);
    float q = __fmul_rn(shifted, reciprocal_);
    q = __fmaf_rn(__fmaf_rn(-q, scale_, shifted), reciprocal_, q);
    q = __fmaf_rn(__fmaf_rn(-q, scale_, shifted), reciprocal_, q);
    return copysignf(q, v);  // a zero's remainder is a positive zero
  }

 private:
  float shift_, scale_, reciprocal_;
};

// Two payloads of finite numbers, the first in the low byte.
template <bool kE5M2>
__device__ __forceinline__ uint32_t PairOfFloat8(float low, float high) {
  uint16_t pair;
  if constexpr (kE5M2)
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

// What an infinity or a NaN becomes: a NaN of its sign.
__device__ __forceinline__ uint32_t Float8NanOf(float v) {
  return (__float_as_uint(v) >> 31 << 7) | 0x7fu;
}

}  // namespace millrace::cuda
