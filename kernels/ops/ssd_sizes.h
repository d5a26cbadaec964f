// The sizes of a scan, of its operands' shapes or of their views.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/ops/mamba_ops.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

// x [batch, length, heads, channels]; b [batch, length, groups, states]. chunk: the positions of
// all chunks but the last.
struct SsdSizes {
  int64_t batch = 0, length = 0, heads = 0, channels = 0, groups = 0, states = 0, chunk = 1;
  DType dtype = DType::kF32;  // of x, b, c and out (and their gradients), if they share one
  bool one_dtype = true;

  int64_t chunks() const { return CeilDiv(length, chunk); }
  int64_t rows() const { return std::min(chunk, length); }  // of the longest chunk
  int64_t heads_of_group() const { return heads / groups; }
  int64_t state() const { return channels * states; }  // elements of one
};

// SsdScanOp or SsdScanGradOp, over shapes or tensor views.
template <class Op>
SsdSizes SsdSizesOf(const Op& op) {
  const Layout &x = op.x.layout, &b = op.b.layout;
  SsdSizes s{.batch = x.dims[0],
             .length = x.dims[1],
             .heads = x.dims[2],
             .channels = x.dims[3],
             .groups = b.dims[2],
             .states = b.dims[3],
             .chunk = op.chunk,
             .dtype = x.dtype};
  const auto same = [&](const auto& view) { s.one_dtype &= view.layout.dtype == s.dtype; };
  same(op.b), same(op.c);
  if constexpr (requires { op.out; }) {
    same(op.out);
  } else {
    same(op.d_out), same(op.d_x), same(op.d_b), same(op.d_c);
  }
  return s;
}

}  // namespace millrace
