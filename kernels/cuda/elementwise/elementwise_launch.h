// The border between elementwise.cc and elementwise.cu. All views are flat, n
// elements; zero launch nothing.
#pragma once

#include "kernels/cuda/ranges.h"
#include "kernels/cuda/views.h"

namespace millrace::cuda {

void LaunchAdd(const Rows& a, const Rows& b, const Rows& out, int64_t n, const Launch& launch);
// x, out [rows, columns], bias [columns].
void LaunchAddBias(const Rows& x, const Rows& bias, const Rows& out, int64_t rows, int64_t columns,
                   const Launch& launch);
void LaunchCopy(const Rows& x, const Rows& out, bool accumulate, int64_t n, const Launch& launch);
// `longest` is the length of the longest range.
void LaunchZeroRanges(const Rows& flat, const Ranges& ranges, int64_t longest,
                      const Launch& launch);

}  // namespace millrace::cuda
