// The border between shard_quantize.cc and its kernels: parts of matrices that shards have, and
// what all ranks make of their tables (kernels/ops/fp8_flat_ops.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/divide.h"
#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

// Elements [first, first + n) of a matrix, n > 0, first + n < 2^31. `scales` of the matrix: element
// (r, c) has that at r / block_rows * scale_columns + c / block_columns.
struct MatrixPart {
  const float* x = nullptr;  // of the master shard
  uint32_t first = 0, n = 0;
  Divisor columns, block_rows, block_columns;
  uint32_t scale_columns = 1;
  bool bf16 = false;  // elements are rounded so
};

// Raises the magnitudes of the matrix, bits of f32, to those of the part.
void LaunchPartMagnitudes(const MatrixPart& part, uint32_t* magnitudes, const Launch& launch);

// payload [n]; `powers`: scales are powers of two.
void LaunchPartQuantize(const MatrixPart& part, const float* scales, bool powers, uint8_t* payload,
                        const Launch& launch);

// scales[s] of the largest of table[r * pitch + s] over the ranks, as bits, s < count.
void LaunchFlatScales(const uint32_t* table, int ranks, int64_t pitch, int64_t count, bool powers,
                      float* scales, const Launch& launch);

// turned[c * turned_stride + r] = payload[r * stride + c].
struct TurnArgs {
  const uint8_t* payload = nullptr;
  uint8_t* turned = nullptr;
  int64_t stride = 0, turned_stride = 0;
  int rows = 0, columns = 0;
};
void LaunchTurn(const TurnArgs& args, const Launch& launch);

// out(r, c) = in(r, c) where `in` has one, else 1.
struct ScalesAt {
  float* data = nullptr;
  int rows = 0, columns = 0;
  int64_t row_stride = 0, column_stride = 0;
};
void LaunchTurnScales(const ScalesAt& in, const ScalesAt& out, const Launch& launch);

}  // namespace millrace::cuda
