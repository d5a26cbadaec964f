// What kernels on integers are made of: exact_kernels.h.
#pragma once

#include <cmath>
#include <initializer_list>

#include "kernels/ops/access.h"
#include "runtime/base/error.h"
#include "runtime/base/tensor_view.h"

namespace millrace::test {

inline constexpr float kExact = 1 << 24;

inline float Small(float x) { return std::remainder(x, 3.0f); }

// Of the half that a gate multiplies: not even in x, so that rows that come with another sign give
// another product.
inline float Up(float x) { return Small(x + 1); }

inline float Checked(float x) {
  MR_CHECK(std::abs(x) < kExact && x == std::nearbyint(x), "{} is no integer below 2^24", x);
  return x;
}

inline float& At(const TensorView& view, std::initializer_list<int64_t> index) {
  MR_CHECK(view.dtype() == DType::kF32, "exact kernels work on f32, not on {}",
           ToString(view.layout));
  int64_t at = 0, d = 0;
  for (const int64_t i : index) at += i * view.stride(static_cast<int>(d++));
  return view.as<float>()[at];
}

inline void Put(const TensorView& view, std::initializer_list<int64_t> index, float x,
                Update update) {
  float& to = At(view, index);
  to = Checked(update == Update::kAccumulate ? to + x : x);
}

// f(row, column) of a matrix.
template <class F>
void ForMatrix(const TensorView& matrix, F&& f) {
  for (int64_t r = 0; r < matrix.dim(0); ++r)
    for (int64_t c = 0; c < matrix.dim(1); ++c) f(r, c);
}

}  // namespace millrace::test
