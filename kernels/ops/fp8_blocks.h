// Which elements of a matrix have one scale (fp8_ops.h), as kernels on devices can include it.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/base/arithmetic.h"

namespace millrace {

inline constexpr int64_t kScaleBlock = 128;
inline constexpr int64_t kScaleMultiple = 4;
inline constexpr float kLeastScale = 0x1p-117f;  // times 2^-9, e4m3's least number: 2^-126

// Whether a dim of n elements has so many scales of blocks.
constexpr bool HasScaleBlocks(int64_t n, int64_t scales) {
  const int64_t blocks = n < 1 ? 1 : CeilDiv(n, kScaleBlock);
  return scales == blocks || scales == RoundUp(blocks, kScaleMultiple);
}

// Which elements have one scale: all; those of a row, or of a column, in a block's span; a block.
enum class ScaleShare { kTensor, kRow, kColumn, kTile };

// Of a matrix of so many rows and columns with [scale_rows, scale_columns] scales; none where its
// blocks are of no such kind.
constexpr std::optional<ScaleShare> ScaleShareOf(int64_t rows, int64_t columns, int64_t scale_rows,
                                                 int64_t scale_columns) {
  const bool row_blocks = HasScaleBlocks(rows, scale_rows),
             column_blocks = HasScaleBlocks(columns, scale_columns);
  if (scale_rows == rows && column_blocks) return ScaleShare::kRow;
  if (scale_columns == columns && row_blocks) return ScaleShare::kColumn;
  if (row_blocks && column_blocks) return ScaleShare::kTile;
  if (scale_rows == 1 && scale_columns == 1) return ScaleShare::kTensor;
  return std::nullopt;
}

}  // namespace millrace
