// Preloaded: matrix products of the BLAS with one element that is off by one, as of a
// machine that computes wrong.
#include <dlfcn.h>

#include <cstdlib>

namespace {
using Sgemm = void(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                   const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);
}

extern "C" void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                            const float* a, int lda, const float* b, int ldb, float beta, float* c,
                            int ldc) {
  auto* const right = reinterpret_cast<Sgemm*>(::dlsym(RTLD_NEXT, "cblas_sgemm"));
  if (right == nullptr) std::abort();
  right(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  c[0] += 1;
}
