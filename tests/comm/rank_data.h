// Operands for tests of collectives, on one rank: typed arrays with views, and values
// that encode rank and index.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/base/float16.h"
#include "runtime/base/tensor_view.h"

namespace millrace::testing {

template <typename T>
constexpr DType DTypeOf();
template <>
constexpr DType DTypeOf<float>() {
  return DType::kF32;
}
template <>
constexpr DType DTypeOf<double>() {
  return DType::kF64;
}
template <>
constexpr DType DTypeOf<BFloat16>() {
  return DType::kBF16;
}
template <>
constexpr DType DTypeOf<Float16>() {
  return DType::kF16;
}
template <>
constexpr DType DTypeOf<int32_t>() {
  return DType::kI32;
}
template <>
constexpr DType DTypeOf<int64_t>() {
  return DType::kI64;
}
template <>
constexpr DType DTypeOf<uint8_t>() {
  return DType::kU8;
}

// Elements [begin, begin + n) of `data` as a 1-D view. An empty one has an address, too.
template <typename T>
TensorView View(std::vector<T>& data, int64_t begin, int64_t n) {
  return {reinterpret_cast<std::byte*>(data.data() + begin), DenseLayout(DTypeOf<T>(), {n})};
}
template <typename T>
TensorView View(std::vector<T>& data) {
  return View(data, 0, static_cast<int64_t>(data.size()));
}

// Well mixed 64 bits of (rank, index): SplitMix64's finaliser.
inline uint64_t Mixed(int rank, int64_t index) {
  uint64_t z = (static_cast<uint64_t>(rank + 1) << 40) + static_cast<uint64_t>(index) +
               0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Any bit pattern, NaNs included: for calls that only move bytes.
template <typename T>
T Pattern(int rank, int64_t index) {
  const uint64_t bits = Mixed(rank, index);
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// For sums: both signs, magnitudes over 24 binades and full mantissas, so that the result depends
// on the order of the additions and on the rounding after each; -0 on all ranks at some places (a
// sum that starts from +0 gives +0 there).
inline double Term(int rank, int64_t index) {
  if (index % 89 == 5) return -0.0;
  const uint64_t bits = Mixed(rank, index);
  const double mantissa = 1.0 + static_cast<double>(bits >> 12) * 0x1p-52;
  const double scale = std::bit_cast<double>((1023 - 12 + (bits & 0x7ff) % 24) << 52);
  return (bits & 0x800) != 0 ? -mantissa * scale : mantissa * scale;
}

// For sums that are exact in every dtype, bf16 included, in any order and for up to 16 ranks: whole
// numbers of both signs, |value| <= 15.
constexpr int Whole(int rank, int64_t index) {
  return static_cast<int>((7 * static_cast<int64_t>(rank) + 5 * index + index / 31) % 31) - 15;
}
constexpr int WholeSum(int world, int64_t index) {
  int sum = 0;
  for (int r = 0; r < world; ++r) sum += Whole(r, index);
  return sum;
}

inline void SetTerm(double value, double& out) { out = value; }
inline void SetTerm(double value, float& out) { out = static_cast<float>(value); }
inline void SetTerm(double value, BFloat16& out) { out = ToBFloat16(static_cast<float>(value)); }
inline void SetTerm(double value, Float16& out) { out = ToFloat16(static_cast<float>(value)); }

template <typename T>
T TermAs(int rank, int64_t index) {
  T out;
  SetTerm(Term(rank, index), out);
  return out;
}

template <typename T>
T WholeAs(int value) {
  T out;
  SetTerm(value, out);
  return out;
}

// What the contract says the sum over ranks first, first + step, ... is (`count` of them), written
// out for one element.
inline float SumOf(float, int64_t index, int first, int step, int count) {
  float sum = TermAs<float>(first, index);
  for (int k = 1; k < count; ++k) sum += TermAs<float>(first + k * step, index);
  return sum;
}
inline double SumOf(double, int64_t index, int first, int step, int count) {
  double sum = Term(first, index);
  for (int k = 1; k < count; ++k) sum += Term(first + k * step, index);
  return sum;
}
inline BFloat16 SumOf(BFloat16, int64_t index, int first, int step, int count) {
  float sum = ToFloat(TermAs<BFloat16>(first, index));
  for (int k = 1; k < count; ++k) sum += ToFloat(TermAs<BFloat16>(first + k * step, index));
  return ToBFloat16(sum);
}
inline Float16 SumOf(Float16, int64_t index, int first, int step, int count) {
  float sum = ToFloat(TermAs<Float16>(first, index));
  for (int k = 1; k < count; ++k) sum += ToFloat(TermAs<Float16>(first + k * step, index));
  return ToFloat16(sum);
}
template <typename T>
T RankOrderOracle(int world, int64_t index) {
  return SumOf(T{}, index, 0, 1, world);
}

template <typename T>
bool SameBits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

}  // namespace millrace::testing
