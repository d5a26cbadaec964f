#include "runtime/base/dtype.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

namespace millrace {
namespace {

TEST_CASE("dtype names round-trip and sizes are those of the C types", "[base][dtype]") {
  struct Row {
    DType dtype;
    const char* name;
    int64_t bytes;
  };
  for (const Row& row :
       {Row{DType::kF32, "f32", sizeof(float)}, Row{DType::kBF16, "bf16", sizeof(BFloat16)},
        Row{DType::kF64, "f64", sizeof(double)}, Row{DType::kI32, "i32", sizeof(int32_t)},
        Row{DType::kI64, "i64", sizeof(int64_t)}, Row{DType::kU8, "u8", 1},
        Row{DType::kE4M3, "e4m3", 1}, Row{DType::kE5M2, "e5m2", 1}, Row{DType::kF16, "f16", 2}}) {
    CAPTURE(row.name);
    REQUIRE(Name(row.dtype) == row.name);
    REQUIRE(Bytes(row.dtype) == row.bytes);
    REQUIRE(DTypeFromName(row.name) == row.dtype);
  }
  REQUIRE_FALSE(DTypeFromName("fp32").has_value());
}

TEST_CASE("every bfloat16 survives the trip through float", "[base][dtype]") {
  std::vector<uint32_t> changed;
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const BFloat16 value{static_cast<uint16_t>(bits)};
    const BFloat16 back = ToBFloat16(ToFloat(value));
    const bool is_nan = (bits & 0x7fff) > 0x7f80;
    if (back.bits != (is_nan ? (bits | 0x40) : bits)) changed.push_back(bits);
  }
  REQUIRE(changed == std::vector<uint32_t>{});
}

// The reference picks the nearer neighbour in double, and the even one on a tie.
uint16_t NearestEven(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t low = static_cast<uint16_t>(bits >> 16);  // towards zero
  const uint16_t high = static_cast<uint16_t>(low + 1);    // away from zero, perhaps infinity
  const auto magnitude = [](uint16_t half) {
    // Infinity stands for 2^128: the value that the next finite step would have.
    return (half & 0x7fff) == 0x7f80 ? std::ldexp(1.0, 128)
                                     : std::fabs(double(ToFloat(BFloat16{half})));
  };
  const double to_low = std::fabs(double(value)) - magnitude(low);
  const double to_high = magnitude(high) - std::fabs(double(value));
  if (to_low != to_high) return to_low < to_high ? low : high;
  return (low & 1) == 0 ? low : high;
}

TEST_CASE("float to bfloat16 rounds to nearest, ties to even", "[base][dtype]") {
  int64_t wrong = 0;
  for (uint32_t upper = 0; upper <= 0xffff; ++upper) {
    if ((upper & 0x7f80) == 0x7f80) continue;  // infinities and NaNs: below
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = std::bit_cast<float>((upper << 16) | lower);
      wrong += ToBFloat16(value).bits != NearestEven(value);
    }
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("infinity stays, overflow rounds to it, and NaN stays NaN", "[base][dtype]") {
  const float inf = std::numeric_limits<float>::infinity();
  REQUIRE(ToBFloat16(inf).bits == 0x7f80);
  REQUIRE(ToBFloat16(-inf).bits == 0xff80);
  REQUIRE(ToBFloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
  REQUIRE(ToBFloat16(std::bit_cast<float>(0x7f800001u)).bits ==
          0x7fc0);  // signalling, payload in the lost half
  REQUIRE(ToBFloat16(std::bit_cast<float>(0xffffffffu)).bits ==
          0xffff);  // rounding up would give -0
}

TEST_CASE("array conversions agree with the scalar ones", "[base][dtype]") {
  const int64_t n = GENERATE(0, 1, 7, 64, 1001);
  std::vector<float> in(n), out(n);
  std::vector<BFloat16> half(n);
  for (int64_t i = 0; i < n; ++i)
    in[i] = std::ldexp(1.0f + float(i) / 1003, int(i % 37) - 18) * (i % 2 ? -1 : 1);
  ConvertToBFloat16(in.data(), half.data(), n);
  ConvertToFloat(half.data(), out.data(), n);
  for (int64_t i = 0; i < n; ++i) {
    REQUIRE(half[i] == ToBFloat16(in[i]));
    REQUIRE(out[i] == ToFloat(half[i]));
  }
}

}  // namespace
}  // namespace millrace
