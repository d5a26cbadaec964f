// out[n] (=|+=) sum over m of x[m,n] in two launches: sums of chunks of rows into scratch, then their sum.
//
// Source  The order of additions follows from the numbers below: rows of a chunk in kLanes interleaved
//         sequences, those in order; then chunks likewise.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/base/dtype.h"

namespace millrace::cuda {

struct ColumnSum {
  const std::byte* x = nullptr;  // [rows, columns], row_stride elements apart
  DType x_dtype = DType::kF32;
  int64_t rows = 0, columns = 0, row_stride = 0;
  float* partials = nullptr;  // [chunks, columns]
  int64_t chunks = 1, chunk_rows = 0;
  std::byte* out = nullptr;
  DType out_dtype = DType::kF32;
  int64_t out_stride = 1;
  bool accumulate = false;
  bool vectors = false;  // every row is aligned to 16 bytes and columns are a multiple of a vector
};

// Columns that one block sums: 32 threads with 16 bytes each.
constexpr int64_t ColumnSumTile(DType dtype) { return dtype == DType::kF32 ? 128 : 256; }

void LaunchColumnSum(const ColumnSum& sum, cudaStream_t stream);

}  // namespace millrace::cuda
