// Run with OPENBLAS_CORETYPE=Prescott: who names a core has it.
#include <cblas.h>

#include <catch2/catch.hpp>
#include <string>

#include "kernels/cpu/matmul/gemm.h"

namespace millrace::cpu {
namespace {

TEST_CASE("a core that the environment names is kept, however old", "[blas]") {
  const float a = 3, b = 5;
  float c = 0;
  Gemm(1, 1, 1, 1, {&a, 1, false}, {&b, 1, false}, 0, &c, 1);
  CHECK(c == 15);
  CHECK(std::string(openblas_get_corename()) == "Prescott");
}

}  // namespace
}  // namespace millrace::cpu
