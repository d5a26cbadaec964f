// What the contracts of FP8 share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/ops/fp8_ops.h"
#include "tests/kernels/support/memory.h"

namespace millrace::test {

// Rows and columns of a block.
struct ScaledBlock {
  int64_t rows, columns;
};
inline constexpr int64_t kAll = int64_t{1} << 40;

inline double ScaleOf(const TensorView& scales, ScaledBlock block, int64_t row, int64_t column) {
  return Get(scales, row / block.rows, column / block.columns);
}

// What the scale of a block has to be whose largest finite magnitude is `most`.
inline float ScaleFor(float most, float largest, ScaleRounding rounding) {
  if (most == 0) return 1;
  const float exact = most / largest;
  float power = 0x1p-117f;
  while (power < exact) power *= 2;
  return rounding == ScaleRounding::kPowerOfTwo ? power : std::max(exact, 0x1p-117f);
}

}  // namespace millrace::test
