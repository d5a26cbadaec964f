#include "kernels/cpu/matmul/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <limits>

#include "kernels/cpu/matmul/blas_core.h"
#include "runtime/base/error.h"

namespace millrace::cpu {

Orientation OrientationOf(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
  if ((col_stride == 1 || cols <= 1) && (rows <= 1 || row_stride >= cols))
    return {rows <= 1 ? std::max<int64_t>(cols, 1) : std::max<int64_t>(row_stride, 1), false};
  MR_CHECK((row_stride == 1 || rows <= 1) && (cols <= 1 || col_stride >= rows),
           "a GEMM operand [{}, {}] has strides {}, {}; one must be 1 and the other at least that "
           "dimension",
           rows, cols, row_stride, col_stride);
  return {cols <= 1 ? std::max<int64_t>(rows, 1) : col_stride, true};
}

void Gemm(int64_t m, int64_t n, int64_t k, float alpha, Matrix a, Matrix b, float beta, float* c,
          int64_t ldc) {
  static const bool one_thread = (SettleBlasCore(), openblas_set_num_threads(1), true);
  MR_CHECK(
      one_thread && std::max({m, n, k, a.ld, b.ld, ldc}) <= std::numeric_limits<blasint>::max(),
      "GEMM of {} x {} x {}, leading dimensions {}, {}, {}: beyond a BLAS integer", m, n, k, a.ld,
      b.ld, ldc);
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (beta == 0)
      for (int64_t i = 0; i < m; ++i) std::fill_n(c + i * ldc, n, 0.0f);
    return;
  }
  const auto flag = [](bool transposed) { return transposed ? CblasTrans : CblasNoTrans; };
  cblas_sgemm(CblasRowMajor, flag(a.transposed), flag(b.transposed), static_cast<blasint>(m),
              static_cast<blasint>(n), static_cast<blasint>(k), alpha, a.data,
              static_cast<blasint>(a.ld), b.data, static_cast<blasint>(b.ld), beta, c,
              static_cast<blasint>(ldc));
}

}  // namespace millrace::cpu
