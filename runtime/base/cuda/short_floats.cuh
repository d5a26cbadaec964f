// Floats of 16 bits, D bf16 or f16, in pairs: a word has one of them above the other. All that
// device code knows of their formats, but for what counts or compares words as they lie.
#pragma once

#include <cstdint>

#include "runtime/base/dtype.h"

namespace millrace {

// For kernels, which call no function of the host.
template <DType D>
inline constexpr bool kIsFloatOf16Bits = IsFloatOf16Bits(D);

// Round to nearest even; a NaN becomes 0x7fff (the CPU keeps its payload).
template <DType D>
__device__ __forceinline__ uint32_t PairOfShorts(float low, float high) {
  uint32_t pair;
  if constexpr (D == DType::kBF16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <DType D>
__device__ __forceinline__ float LowShort(uint32_t pair) {
  if constexpr (D == DType::kBF16) return __uint_as_float(pair << 16);
  float f;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(f) : "r"(pair));
  return f;
}

template <DType D>
__device__ __forceinline__ float HighShort(uint32_t pair) {
  if constexpr (D == DType::kBF16) return __uint_as_float(pair & 0xffff0000u);
  float f;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high;}"
      : "=f"(f)
      : "r"(pair));
  return f;
}

}  // namespace millrace
