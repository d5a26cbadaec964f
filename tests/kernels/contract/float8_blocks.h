// What the contracts of FP8 share.
#pragma once

#include <cstdint>

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

}  // namespace millrace::test
