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

// A view of f32 or bf16 rows whose elements are neighbours. A flat view is one row.
struct Rows {
  std::byte* data = nullptr;  // nullptr: the operand is absent
  int64_t stride = 0;         // elements from row to row
  bool bf16 = false;          // else f32
  bool wide = false;          // every row starts at a multiple of 16 bytes
};

// Dtype of all rows of a kernel, if they share one: then it is known when the kernel is compiled.
enum class Elements { kF32, kBF16, kAny };

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
