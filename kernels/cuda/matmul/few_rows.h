// Products of few rows by a weight, which take as long as the weight takes to be read: kernels of
// our own, with the bias and the GELU; matmul.h says when they are taken.
#pragma once

#include "kernels/cuda/rows.h"
#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

// pre = a b^T + bias, out = GELU(pre) or pre; a, b bf16 with lines of `depth` elements, a multiple
// of 8, that begin at multiples of 16 bytes.
struct FewRowsArgs {
  Rows a, b, bias, pre, out;  // bias and pre may be absent; bias is one row
  int rows = 0, columns = 0, depth = 0;
  bool gelu = false;
};

// 0 < rows <= kFewRows.
inline constexpr int kFewRows = 4;
void LaunchFewRows(const FewRowsArgs& args, const Launch& launch);

// The same where tiles of columns alone would leave multiprocessors idle, on wgmma
// (split_rows.cu): a tile's depth is dealt out to blocks, whose sums are added in their order. All
// operands bf16 whose lines begin at multiples of 16 bytes, columns a multiple of 8. The bits of a
// row depend neither on the other rows nor on how many there are.
inline constexpr int kSplitRows = 64;
// Whether 0 < rows <= kSplitRows, and columns and depth are of that kind on `sms` multiprocessors.
bool SplitsRows(int64_t rows, int64_t columns, int64_t depth, int sms);
void LaunchSplitRows(const FewRowsArgs& args, const Launch& launch);

}  // namespace millrace::cuda
