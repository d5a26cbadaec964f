// IEEE 754's half precision (binary16) as storage: every computation on it happens in float.
//
//          exponent, fraction  bias  largest  least normal, least
//   f16    5, 10 bits          15    65504    2^-14, 2^-24
//
// Rounding  To nearest, ties to even; from 65520 on to infinity. A NaN keeps its sign and upper
//           payload and becomes quiet.
#pragma once

#include <bit>
#include <cstdint>

#include "runtime/base/dtype.h"

namespace millrace {

// A struct, so that it never mixes with an integer.
struct Float16 {
  uint16_t bits;
  friend constexpr bool operator==(Float16, Float16) = default;  // bitwise
};
static_assert(sizeof(Float16) == 2);

// Exact; a NaN keeps its bits. Shifted, a half's magnitude is the float 2^112 times smaller, below
// the normal halves, too. Results are computed both ways and one is selected, so loops vectorise.
constexpr float ToFloat(Float16 value) noexcept {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t shifted = static_cast<uint32_t>(value.bits & 0x7fffu) << 13;
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(shifted) * 0x1p112f);
  const bool is_finite = shifted < 0x0f800000u;
  return std::bit_cast<float>(sign | (is_finite ? finite : shifted | 0x7f800000u));
}

// Numbers of one sign are ordered as their bits, so a rounding that carries into the exponent gives
// the next number. Below the normal halves, adding 1/2 leaves the sum no bits below 2^-24.
constexpr Float16 ToFloat16(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t rounded = ((magnitude + 0xfffu + (magnitude >> 13 & 1u)) >> 13) - (112u << 10);
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
                         std::bit_cast<uint32_t>(0.5f);
  const uint32_t quiet_nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  const uint32_t finite = magnitude < 0x38800000u ? small : rounded;
  const uint32_t number = magnitude >= 0x477ff000u ? 0x7c00u : finite;
  return Float16{static_cast<uint16_t>(sign | (magnitude > 0x7f800000u ? quiet_nan : number))};
}

// out[i] = in[i] for i in [0, n). No overlap.
inline void ConvertToFloat(const Float16* __restrict in, float* __restrict out,
                           int64_t n) noexcept {
  for (int64_t i = 0; i < n; ++i) out[i] = ToFloat(in[i]);
}
inline void ConvertToFloat16(const float* __restrict in, Float16* __restrict out,
                             int64_t n) noexcept {
  for (int64_t i = 0; i < n; ++i) out[i] = ToFloat16(in[i]);
}

}  // namespace millrace
