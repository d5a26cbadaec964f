// Single-precision matrix products of OpenBLAS, on the calling thread only.
//
// Threads  Callable from several threads at once. The first call sets OpenBLAS to one thread, for
//          the whole process: ranks are the unit of parallelism.
// Order    Bits depend on m, n, k, on which operands are transposed and on the values; not on
//          addresses or leading dimensions.
#pragma once

#include <cstdint>

#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

// A matrix [rows, cols]: element (i, j) is data[i*ld + j], or data[j*ld + i] when transposed.
struct Matrix {
  const float* data;
  int64_t ld;
  bool transposed = false;
};

// How a 2-D view with one stride of 1 is read by a GEMM.
struct Orientation {
  int64_t ld;
  bool transposed;
};
Orientation OrientationOf(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride);

// c[i*ldc + j] = alpha * sum over l of a(i,l)*b(l,j) + beta * c[i*ldc + j].
// a [m,k], b [k,n], c [m,n]; beta 0 does not read c.
void Gemm(int64_t m, int64_t n, int64_t k, float alpha, Matrix a, Matrix b, float beta, float* c,
          int64_t ldc);

}  // namespace millrace::cpu
