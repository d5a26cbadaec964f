// The kernels of RowLinearOp: one row by a weight, with the norm ahead of the product and what is
// behind it. Most of a step that decodes one sequence, which takes as long as weights take to be
// read.
#pragma once

#include "kernels/ops/row_linear_ops.h"
#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

// Operands as the op's, dense; absent ones are null. All but out are bf16 and begin at multiples of
// 16 bytes. Small, as a kernel's arguments are read from memory that nothing else has touched.
struct OneRowArgs {
  const uint16_t *x = nullptr, *residual = nullptr, *norm_weight = nullptr, *norm_bias = nullptr,
                 *weight = nullptr, *bias = nullptr;
  uint16_t* sum = nullptr;
  std::byte* out = nullptr;
  const int32_t* at = nullptr;
  const float* table = nullptr;
  int units = 0;   // what a warp forms at once: a column, or the two that kSwiglu and kRotate join
  int gap = 0;     // columns from the first to the second of a unit; kRotate: D / 2
  int turned = 0;  // units whose head is rotated
  int depth = 0;   // of x
  float eps = 0;
  RowNorm norm = RowNorm::kNone;
  RowFinish finish = RowFinish::kNone;
  bool constant = false;
  bool out_f32 = false;  // or bf16
};
void LaunchOneRow(const OneRowArgs& args, const Launch& launch);
// As RowLinearAttrs::in_order has it: a norm of at most kMostRowNormInOrder, kNone or kGelu, and
// columns a multiple of 8; out begins at a multiple of 16 bytes. in_order_row.cu; where HasInOrder
// of in_order.h.
void LaunchInOrderRow(const OneRowArgs& args, const Launch& launch);

}  // namespace millrace::cuda
