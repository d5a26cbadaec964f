// The border between elementwise.cc and the kernels. Views are flat where nothing else is said, n
// elements; zero launch nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ranges.h"
#include "kernels/cuda/views.h"

namespace millrace::cuda {

void LaunchAdd(const Rows& a, const Rows& b, const Rows& out, int64_t n, const Launch& launch);
// x, out [rows, columns], bias [columns].
void LaunchAddBias(const Rows& x, const Rows& bias, const Rows& out, int64_t rows, int64_t columns,
                   const Launch& launch);

// out[c*out_ld + r] = x[r*x_ld + c], elements of `size` bytes, 1, 2, 4 or 8.
struct TurnedRows {
  int64_t rows, columns;
  int64_t x_ld, out_ld;
  int64_t size;
};
void LaunchTurnRows(const std::byte* x, std::byte* out, const TurnedRows& turned,
                    const Launch& launch);
void LaunchCopy(const Rows& x, const Rows& out, bool accumulate, int64_t n, const Launch& launch);
// `longest` is the length of the longest range.
void LaunchZeroRanges(const Rows& flat, const Ranges& ranges, int64_t longest,
                      const Launch& launch);

}  // namespace millrace::cuda
