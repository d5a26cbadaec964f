// Float and token views as the kernels of this folder take them: plain structs
// that are passed by value.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/arithmetic.h"
#include "runtime/base/step_scalars.h"

namespace millrace::cuda {

// Kernels touch rows in packs of eight consecutive elements; element c of a row belongs to pack c /
// 8. Which thread owns a pack, and so every order of additions, follows from the number of columns
// (norm_grad: and the dtypes), never from whether an access could be 16 bytes wide.
inline constexpr int kPack = 8;

// A view of rows whose elements are neighbours, f32 unless it says another dtype. A flat view is
// one row.
struct Rows {
  std::byte* data = nullptr;  // nullptr: the operand is absent
  int64_t stride = 0;         // elements from row to row
  bool bf16 = false;
  bool wide = false;  // every row starts at a multiple of 16 bytes
  bool f16 = false;   // of operands that may be (views.h)
};

// Dtype of all rows of a kernel, if they share one: then it is known when the kernel is compiled.
// Else which of two each row has: f32 or bf16 (kAny), f32 or f16 (kAnyF16). No op has floats of 16
// bits of both formats, so that no kernel asks for more than one.
enum class Elements { kF32, kBF16, kAny, kF16, kAnyF16 };

// Where dtypes differ, or may: the pair of formats that has E's.
constexpr Elements MixOf(Elements e) {
  return e == Elements::kF16 || e == Elements::kAnyF16 ? Elements::kAnyF16 : Elements::kAny;
}
// E's format of 16 bits.
constexpr Elements ShortOf(Elements e) {
  return MixOf(e) == Elements::kAnyF16 ? Elements::kF16 : Elements::kBF16;
}
// Every row has elements of 16 bits.
constexpr bool IsShort(Elements e) { return e == Elements::kBF16 || e == Elements::kF16; }

// For kernels, which call no function of the host.
template <Elements E>
inline constexpr Elements kMixOf = MixOf(E);
template <Elements E>
inline constexpr Elements kShortOf = ShortOf(E);
template <Elements E>
inline constexpr bool kIsShort = IsShort(E);

// i32 [B,T]; row r = b*T + t. `data` addresses parity 0.
struct TokenRows {
  const int32_t* data = nullptr;
  int64_t batch = 0, length = 0;
  int64_t batch_stride = 0, length_stride = 0;
  int64_t parity_stride = 0;
  const StepScalars* scalars = nullptr;
};

// f32 [B,T], another value of each token; rows, parity and scalars as the tokens'. `data` addresses
// parity 0.
struct ValueRows {
  const float* data = nullptr;  // nullptr: the operand is absent
  int64_t batch_stride = 0, length_stride = 0;
};

constexpr int64_t Packs(int64_t columns) { return CeilDiv(columns, kPack); }

}  // namespace millrace::cuda
