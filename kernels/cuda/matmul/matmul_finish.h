// The elementwise end of a matmul whose f32 product passed through scratch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/cuda/launch.h"
#include "runtime/base/dtype.h"

namespace millrace::cuda {

// out(i, j) (=|+=) product[i*cols + j] + bias(j), in f32 with one rounding to out's dtype.
// i < rows, j < cols; an absent product or bias is null and counts as 0. Strides count elements.
struct MatmulFinish {
  const float* product = nullptr;
  const std::byte* bias = nullptr;
  DType bias_dtype = DType::kF32;
  int64_t bias_stride = 1;
  std::byte* out = nullptr;
  DType out_dtype = DType::kF32;
  int64_t row_stride = 0, col_stride = 1;
  int64_t rows = 0, cols = 0;
  bool accumulate = false;
};

// Enqueues it; nothing when it has no elements.
void LaunchMatmulFinish(const MatmulFinish& finish, const Launch& launch);

}  // namespace millrace::cuda
