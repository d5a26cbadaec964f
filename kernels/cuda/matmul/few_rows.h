// Products of few rows by a weight, which take as long as the weight takes to be read: a kernel of
// our own, with the bias and the GELU; matmul.h says when it is taken.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows.h"

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

}  // namespace millrace::cuda
