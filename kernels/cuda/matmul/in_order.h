// Products whose rows do not know of each other (MatmulAttrs::in_order): sums over k ascend by
// sixteens, a step of the tensor cores each, with nothing else between; so a row has the same bits
// wherever it lies and however many there are. Two kernels have that order: of few rows one whose
// blocks read some lines of the weight each (in_order_rows.cu), of many the grouped product of
// experts, of one expert (moe/grouped_wgmma.cuh). So has RowLinearOp's of one (one_row.h).
#pragma once

#include "kernels/cuda/rows.h"
#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

// pre = a b^T + bias, out = GELU(pre) or pre; all bf16, of each row neighbours in a line at a
// multiple of 16 bytes, depth and columns multiples of 8. bias [columns] and pre may be absent.
struct InOrderArgs {
  Rows a, b, bias, pre, out;
  int rows = 0, columns = 0, depth = 0;
  bool gelu = false;
  bool constant = false;  // MatmulAttrs::constant: of few rows, b may be read ahead of BeginKernel
};

// Of one multiprocessor's tile of rows: more of them go through the other kernel.
inline constexpr int kInOrderRows = 64;
// 0 < rows <= kInOrderRows, columns and depth above 0.
void LaunchInOrderRows(const InOrderArgs& args, const Launch& launch);
// Without GELU and pre. ticket: two words that are zero, and will be (tickets.h).
void LaunchInOrderTiles(const InOrderArgs& args, unsigned* ticket, const Launch& launch);
// Whether this program has both for a GPU of that compute capability.
bool HasInOrder(int major, int minor);

}  // namespace millrace::cuda
