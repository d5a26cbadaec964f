// The 8-bit floats, all of them, against their specification (OFP8) written out in double.
#include "runtime/base/float8.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>

namespace millrace {
namespace {

struct Format {
  DType dtype;
  int fraction_bits, bias;
  bool infinities;
};
constexpr Format kFormats[] = {{DType::kE4M3, 3, 7, false}, {DType::kE5M2, 2, 15, true}};

double ValueOf(const Format& f, int code) {
  const int fraction = code & ((1 << f.fraction_bits) - 1),
            exponent = (code & 0x7f) >> f.fraction_bits;
  const double sign = code < 128 ? 1 : -1;
  if (f.infinities && (code & 0x7c) == 0x7c)
    return fraction == 0 ? sign * INFINITY : static_cast<double>(NAN);
  if (!f.infinities && (code & 0x7f) == 0x7f) return static_cast<double>(NAN);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - f.bias - f.fraction_bits);
  return sign * std::ldexp((1 << f.fraction_bits) + fraction, exponent - f.bias - f.fraction_bits);
}

// Codes of positive numbers by value.
std::map<double, int> Numbers(const Format& f) {
  std::map<double, int> numbers;
  for (int code = 0; code < 128; ++code)
    if (std::isfinite(ValueOf(f, code))) numbers[ValueOf(f, code)] = code;
  return numbers;
}

// The nearest number's code, of two the even one; beyond the largest, the largest.
int Nearest(const std::map<double, int>& numbers, float x) {
  const int sign = std::signbit(x) ? 128 : 0;
  if (!std::isfinite(x)) return sign | 0x7f;
  const double magnitude = std::fabs(x);
  const auto above = numbers.lower_bound(magnitude);
  if (above == numbers.end()) return sign | numbers.rbegin()->second;
  if (above == numbers.begin()) return sign | above->second;
  const auto below = std::prev(above);
  const double up = above->first - magnitude, down = magnitude - below->first;
  if (up == down) return sign | (above->second % 2 == 0 ? above->second : below->second);
  return sign | (up < down ? above->second : below->second);
}

TEST_CASE("each of 256 codes has the value that the specification gives it") {
  for (const Format& f : kFormats)
    for (int code = 0; code < 256; ++code) {
      CAPTURE(Name(f.dtype), code);
      const float value = ValuesOf(f.dtype)[static_cast<size_t>(code)];
      const double want = ValueOf(f, code);
      if (std::isnan(want)) {
        CHECK(std::isnan(value));
      } else {
        CHECK(double{value} == want);
        CHECK(std::signbit(value) == (code >= 128));  // of zeros, too
      }
    }
  CHECK(LargestOf(DType::kE4M3) == 448);
  CHECK(LargestOf(DType::kE5M2) == 57344);
}

TEST_CASE("every finite code is what its value rounds to") {
  for (const Format& f : kFormats)
    for (int code = 0; code < 256; ++code)
      if (std::isfinite(ValueOf(f, code))) {
        CAPTURE(Name(f.dtype), code);
        CHECK(ToFloat8(static_cast<float>(ValueOf(f, code)), f.dtype) == code);
      }
}

TEST_CASE("every bf16 value rounds to the nearest code, ties to even, and saturates") {
  for (const Format& f : kFormats) {
    const std::map<double, int> numbers = Numbers(f);
    int wrong = 0;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const float x = ToFloat(BFloat16{static_cast<uint16_t>(bits)});
      wrong += ToFloat8(x, f.dtype) != Nearest(numbers, x);
    }
    CAPTURE(Name(f.dtype));
    CHECK(wrong == 0);
  }
}

// Where a bf16 has not enough bits: of each two neighbours the middle, and the floats beside it.
TEST_CASE("floats at and beside every tie round to the nearest code") {
  for (const Format& f : kFormats) {
    const std::map<double, int> numbers = Numbers(f);
    for (auto below = numbers.begin(), above = std::next(below); above != numbers.end();
         ++below, ++above) {
      const auto tie = static_cast<float>((below->first + above->first) / 2);
      for (const float x : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, INFINITY)}) {
        CAPTURE(Name(f.dtype), x);
        CHECK(ToFloat8(x, f.dtype) == Nearest(numbers, x));
        CHECK(ToFloat8(-x, f.dtype) == Nearest(numbers, -x));
      }
      CHECK(ToFloat8(std::nextafter(tie, 0.0f), f.dtype) == below->second);
      CHECK(ToFloat8(std::nextafter(tie, INFINITY), f.dtype) == above->second);
    }
  }
}

TEST_CASE("saturation hides no infinity and no NaN") {
  for (const Format& f : kFormats)
    for (const float x : {INFINITY, -INFINITY, NAN, -NAN}) {
      CAPTURE(Name(f.dtype), x);
      CHECK(std::isnan(ValuesOf(f.dtype)[ToFloat8(x, f.dtype)]));
    }
  CHECK(ValuesOf(DType::kE4M3)[ToFloat8(3e38f, DType::kE4M3)] == 448);
  CHECK(ValuesOf(DType::kE5M2)[ToFloat8(-3e38f, DType::kE5M2)] == -57344);
}

}  // namespace
}  // namespace millrace
