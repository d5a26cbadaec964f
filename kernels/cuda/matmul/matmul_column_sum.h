// out[n] (=|+=) sum over m of x[m,n]. Few rows take one launch; more take two: sums of chunks of
// rows into scratch, then their sum.
//
// Source  The order of additions follows from the shape and the numbers below, as the kernels say.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/cuda/launch.h"
#include "runtime/base/dtype.h"

namespace millrace::cuda {

struct ColumnSum {
  const std::byte* x = nullptr;  // [rows, columns], row_stride elements apart
  DType x_dtype = DType::kF32;
  int64_t rows = 0, columns = 0, row_stride = 0;
  float* partials = nullptr;  // [chunks, columns]; nullptr: one launch
  int64_t chunks = 1;         // at most kColumnSumBlocks; chunk c takes every chunks-th 8 rows
  std::byte* out = nullptr;
  DType out_dtype = DType::kF32;
  int64_t out_stride = 1;
  uint32_t* magnitude = nullptr;
  bool accumulate = false;
  bool vectors = false;  // every row is aligned to 16 bytes and columns are a multiple of a vector
};

// Columns that one block sums: 32 threads with 16 bytes each.
constexpr int64_t ColumnSumTile(DType dtype) { return dtype == DType::kF32 ? 128 : 256; }

inline constexpr int64_t kColumnSumFewRows = 4096;  // one launch

void LaunchColumnSum(const ColumnSum& sum, const Launch& launch);

}  // namespace millrace::cuda
