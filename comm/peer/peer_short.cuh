// Floats of 16 bits, bf16 or f16, between memory and registers.
#pragma once

#include <cstdint>

#include "runtime/base/dtype.h"

namespace millrace {

template <DType D>
inline constexpr bool kIsShort = IsFloatOf16Bits(D);

// Round to nearest even; a NaN becomes 0x7fff.
template <DType D>
__device__ __forceinline__ uint32_t PairOf(float low, float high) {
  uint32_t pair;
  if constexpr (D == DType::kBF16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <DType D>
__device__ __forceinline__ float FloatOf(uint16_t one) {
  if constexpr (D == DType::kBF16) return __uint_as_float(static_cast<uint32_t>(one) << 16);
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(one));
  return f;
}

}  // namespace millrace
