// Half precision, all of it, against IEEE 754 written out in double.
#include "runtime/base/float16.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

namespace millrace {
namespace {

// Of a magnitude, bits below 0x8000; infinity stands for 2^16, the value that the next finite step
// would have.
double MagnitudeOf(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10), fraction = static_cast<int>(bits & 0x3ff);
  return exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
}

TEST_CASE("each of 65,536 halves has the value that IEEE 754 gives it, and comes back") {
  std::vector<uint32_t> wrong;
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = ToFloat(Float16{static_cast<uint16_t>(bits)});
    const uint32_t magnitude = bits & 0x7fff;
    const bool is_nan = magnitude > 0x7c00;
    bool right = std::signbit(value) == (bits >= 0x8000) && std::isnan(value) == is_nan;
    if (magnitude == 0x7c00) right &= std::isinf(value);
    if (magnitude < 0x7c00) right &= std::fabs(double{value}) == MagnitudeOf(magnitude);
    right &= ToFloat16(value).bits == (is_nan ? (bits | 0x200) : bits);
    if (!right) wrong.push_back(bits);
  }
  REQUIRE(wrong == std::vector<uint32_t>{});
}

// Floats at, beside and between each half and the next one, the largest and infinity included.
TEST_CASE("float to half rounds to nearest, ties to even, subnormal or not") {
  std::vector<uint32_t> wrong;
  for (uint32_t low = 0; low < 0x7c00; ++low) {
    const uint32_t even = low + (low & 1);
    const auto middle = static_cast<float>((MagnitudeOf(low) + MagnitudeOf(low + 1)) / 2);  // exact
    const auto at = static_cast<float>(MagnitudeOf(low));
    const auto nearest = [&](float value, uint32_t bits) {
      if (ToFloat16(value).bits != bits || ToFloat16(-value).bits != (bits | 0x8000))
        wrong.push_back(low);
    };
    nearest(at, low);
    nearest(std::nextafter(at, 1e9f), low);
    nearest(std::nextafter(middle, 0.0f), low);
    nearest(middle, even);
    nearest(std::nextafter(middle, 1e9f), low + 1);
  }
  REQUIRE(wrong == std::vector<uint32_t>{});
}

TEST_CASE("infinity stays, overflow rounds to it, tiny floats to zero, and NaN stays NaN") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK(ToFloat16(kInfinity).bits == 0x7c00);
  CHECK(ToFloat16(-kInfinity).bits == 0xfc00);
  CHECK(ToFloat16(65504.0f).bits == 0x7bff);
  CHECK(ToFloat16(std::nextafter(65520.0f, 0.0f)).bits == 0x7bff);
  CHECK(ToFloat16(65520.0f).bits == 0x7c00);
  CHECK(ToFloat16(std::numeric_limits<float>::max()).bits == 0x7c00);
  CHECK(ToFloat16(0x1p-25f).bits == 0);  // a tie
  CHECK(ToFloat16(std::nextafter(0x1p-25f, 1.0f)).bits == 1);
  CHECK(ToFloat16(-std::numeric_limits<float>::denorm_min()).bits == 0x8000);
  // Signalling, payload in the lost bits; and one that rounding up would carry into -0.
  CHECK(ToFloat16(std::bit_cast<float>(0x7f800001u)).bits == 0x7e00);
  CHECK(ToFloat16(std::bit_cast<float>(0xffffffffu)).bits == 0xffff);
}

TEST_CASE("array conversions agree with the scalar ones, halves included") {
  const int64_t n = GENERATE(0, 1, 7, 64, 1001);
  const auto count = static_cast<size_t>(n);
  std::vector<float> in(count), out(count);
  std::vector<Float16> half(count);
  for (int64_t i = 0; i < n; ++i)
    in[static_cast<size_t>(i)] =
        std::ldexp(1.0f + float(i) / 1003, int(i % 44) - 26) * (i % 2 ? -1.0f : 1.0f);
  ConvertToFloat16(in.data(), half.data(), n);
  ConvertToFloat(half.data(), out.data(), n);
  for (size_t i = 0; i < count; ++i) {
    REQUIRE(half[i] == ToFloat16(in[i]));
    REQUIRE(std::bit_cast<uint32_t>(out[i]) == std::bit_cast<uint32_t>(ToFloat(half[i])));
  }
}

}  // namespace
}  // namespace millrace
