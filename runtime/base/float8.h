// The two 8-bit floats of the Open Compute Project's OFP8 specification, as storage: every
// computation on them happens in float.
//
//          exponent, fraction  bias  largest  least normal, least  infinities
//   e4m3   4, 3 bits           7     448      2^-6, 2^-9           none; NaN is S.1111.111
//   e5m2   5, 2 bits           15    57344    2^-14, 2^-16         S.11111.00; NaNs behind it
//
// Rounding  To nearest, ties to even; what would be beyond the largest number becomes it: it
//           saturates. That holds for finite values alone: an infinity or a NaN becomes a NaN of
//           its sign, so that saturation never hides one. (The specification would let an infinity
//           saturate.)
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "runtime/base/dtype.h"

namespace millrace {
namespace internal {

struct Float8Format {
  int fraction_bits;
  int least_exponent;  // of normal numbers
  float largest;
  uint8_t nan;  // the positive one that conversions give
};
inline constexpr Float8Format kE4M3Format{3, -6, 448.0f, 0x7f};
inline constexpr Float8Format kE5M2Format{2, -14, 57344.0f, 0x7f};

constexpr const Float8Format& FormatOf(DType dtype) noexcept {
  return dtype == DType::kE4M3 ? kE4M3Format : kE5M2Format;
}

// Numbers of one sign are ordered as their codes. So the rounded float's exponent and upper
// fraction bits are the code, less the difference of the biases; below the normal numbers, a code
// is how many times the least one fits.
constexpr uint8_t RoundToFloat8(float value, const Float8Format& format) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint8_t>(bits >> 31 << 7);
  if (magnitude >= 0x7f800000u) return sign | format.nan;
  const int dropped = 23 - format.fraction_bits;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  uint32_t code = 0;
  if (exponent < format.least_exponent) {
    // Adding so large a float leaves no bits below the least number: its sum is rounded there.
    const float unit = std::bit_cast<float>(
        static_cast<uint32_t>(127 + format.least_exponent - format.fraction_bits + 23) << 23);
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + unit) -
           std::bit_cast<uint32_t>(unit);
  } else {
    const uint32_t half = (1u << (dropped - 1)) - 1 + ((magnitude >> dropped) & 1u);
    code = ((magnitude + half) >> dropped) -
           (static_cast<uint32_t>(126 + format.least_exponent) << format.fraction_bits);
  }
  const uint32_t most =
      (std::bit_cast<uint32_t>(format.largest) >> dropped) -
      (static_cast<uint32_t>(126 + format.least_exponent) << format.fraction_bits);
  return static_cast<uint8_t>(sign | (code < most ? code : most));
}

constexpr float Float8ToFloat(uint8_t bits, DType dtype) noexcept {
  const Float8Format& format = FormatOf(dtype);
  const uint32_t code = bits & 0x7fu;
  const uint32_t most_exponent = 0x7fu >> format.fraction_bits;
  const uint32_t fraction = code & ((1u << format.fraction_bits) - 1),
                 exponent = code >> format.fraction_bits;
  float magnitude = 0;
  if (dtype == DType::kE5M2 && exponent == most_exponent)
    magnitude = fraction == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  else if (code == 0x7fu)
    magnitude = std::numeric_limits<float>::quiet_NaN();
  else if (exponent == 0)
    magnitude =
        static_cast<float>(fraction) *
        std::bit_cast<float>(
            static_cast<uint32_t>(127 + format.least_exponent - format.fraction_bits) << 23);
  else
    magnitude =
        std::bit_cast<float>((exponent + static_cast<uint32_t>(126 + format.least_exponent)) << 23 |
                             fraction << (23 - format.fraction_bits));
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | static_cast<uint32_t>(bits >> 7)
                                                                       << 31);
}

template <DType dtype>
constexpr std::array<float, 256> Float8Table() noexcept {
  std::array<float, 256> values{};
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = Float8ToFloat(static_cast<uint8_t>(i), dtype);
  return values;
}
inline constexpr std::array<float, 256> kE4M3Values = Float8Table<DType::kE4M3>();
inline constexpr std::array<float, 256> kE5M2Values = Float8Table<DType::kE5M2>();

}  // namespace internal

// dtype is kE4M3 or kE5M2.
constexpr float LargestOf(DType dtype) noexcept { return internal::FormatOf(dtype).largest; }
constexpr uint8_t ToFloat8(float value, DType dtype) noexcept {
  return internal::RoundToFloat8(value, internal::FormatOf(dtype));
}
// The values of all 256 codes, exact.
constexpr const std::array<float, 256>& ValuesOf(DType dtype) noexcept {
  return dtype == DType::kE4M3 ? internal::kE4M3Values : internal::kE5M2Values;
}

}  // namespace millrace
