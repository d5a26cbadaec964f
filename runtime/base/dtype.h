// Element types, and bfloat16 as storage: every computation on it happens in float. IEEE's half is
// float16.h's, the formats of 8 bits are float8.h's.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace {

enum class DType : uint8_t { kF32, kBF16, kF64, kI32, kI64, kU8, kE4M3, kE5M2, kF16 };

constexpr int64_t Bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::kU8:
    case DType::kE4M3:
    case DType::kE5M2:
      return 1;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF64:
    case DType::kI64:
      return 8;
  }
  return 0;
}

constexpr std::string_view Name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF64:
      return "f64";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
    case DType::kE4M3:
      return "e4m3";
    case DType::kE5M2:
      return "e5m2";
    case DType::kF16:
      return "f16";
  }
  return "?";
}

constexpr std::optional<DType> DTypeFromName(std::string_view name) noexcept {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kI64,
                            DType::kU8, DType::kE4M3, DType::kE5M2, DType::kF16})
    if (Name(dtype) == name) return dtype;
  return std::nullopt;
}

// The upper half of a float32. A struct, so that it never mixes with an integer.
struct BFloat16 {
  uint16_t bits;
  friend constexpr bool operator==(BFloat16,
                                   BFloat16) = default;  // bitwise: NaN equals itself, -0 is not 0
};
static_assert(sizeof(BFloat16) == 2);

constexpr float ToFloat(BFloat16 value) noexcept {  // exact
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// Round to nearest, ties to even; overflow goes to infinity. A NaN keeps its sign and upper payload
// and becomes quiet: rounding could otherwise carry it into infinity. Both results are computed and
// one is selected, so loops vectorise.
constexpr BFloat16 ToBFloat16(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return BFloat16{static_cast<uint16_t>(is_nan ? quiet_nan : rounded)};
}

// What tensor cores multiply at one rate.
constexpr bool IsFloatOf16Bits(DType dtype) noexcept {
  return dtype == DType::kBF16 || dtype == DType::kF16;
}

constexpr bool IsFloat8(DType dtype) noexcept {
  return dtype == DType::kE4M3 || dtype == DType::kE5M2;
}

// out[i] = in[i] for i in [0, n). No overlap.
inline void ConvertToFloat(const BFloat16* __restrict in, float* __restrict out,
                           int64_t n) noexcept {
  for (int64_t i = 0; i < n; ++i) out[i] = ToFloat(in[i]);
}
inline void ConvertToBFloat16(const float* __restrict in, BFloat16* __restrict out,
                              int64_t n) noexcept {
  for (int64_t i = 0; i < n; ++i) out[i] = ToBFloat16(in[i]);
}

}  // namespace millrace
