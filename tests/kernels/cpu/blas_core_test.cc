// A processor that OpenBLAS does not know; Prescott is what it takes for such a one.
#include "kernels/cpu/matmul/blas_core.h"

#include <cblas.h>
#include <stdlib.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "kernels/cpu/matmul/gemm.h"

namespace millrace::cpu {
namespace {

// A product whose elements tell rows and columns apart, and whose sums round.
std::vector<float> Product() {
  const int64_t m = 37, n = 53, k = 71;
  std::vector<float> a(m * k), b(k * n), c(m * n);
  for (size_t i = 0; i < a.size(); ++i) a[i] = 1.0f / static_cast<float>(1 + (i * 7919) % 1013);
  for (size_t i = 0; i < b.size(); ++i) b[i] = -1.0f / static_cast<float>(3 + (i * 104729) % 997);
  Gemm(m, n, k, 1, {a.data(), k, false}, {b.data(), n, false}, 0, c.data(), n);
  return c;
}

TEST_CASE("no product runs on what OpenBLAS takes for a processor that it does not know",
          "[blas]") {
  Product();
  CHECK(MissedBlasCore(openblas_get_corename()).empty());
}

TEST_CASE("what is missed is the newest core with the processor's instructions", "[blas]") {
  const std::string core = __builtin_cpu_supports("avx512vl") ? "SkylakeX" : "Haswell";
  CHECK(MissedBlasCore("Prescott") == core);
  CHECK(MissedBlasCore("Barcelona") == core);
  for (const char* known : {"Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids", ""})
    CHECK(MissedBlasCore(known).empty());
}

TEST_CASE("a core that is taken computes as one that the environment named", "[blas]") {
  ::unsetenv("OPENBLAS_CORETYPE");
  Product();  // settled
  const std::string before = openblas_get_corename();
  const std::vector<float> expected = Product();
  REQUIRE(TakeBlasCore("Prescott"));
  CHECK(std::string(openblas_get_corename()) == "Prescott");
  CHECK(Product() != expected);  // Gemm settles once
  REQUIRE(TakeBlasCore(before));
  CHECK(Product() == expected);
  CHECK_FALSE(TakeBlasCore("no such core"));
  REQUIRE(TakeBlasCore(before));
  CHECK(::getenv("OPENBLAS_CORETYPE") == nullptr);
  ::setenv("OPENBLAS_CORETYPE", "Nehalem", 1);
  REQUIRE(TakeBlasCore(before));
  CHECK(::getenv("OPENBLAS_CORETYPE") == std::string("Nehalem"));
  ::unsetenv("OPENBLAS_CORETYPE");
}

}  // namespace
}  // namespace millrace::cpu
