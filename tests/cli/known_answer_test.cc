// The products that `millrace doctor` tries: right on the CPU; one wrong
// element of one dtype is found.
#include "tools/cli/doctor/known_answer.h"

#include <catch2/catch.hpp>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/cpu/host_device.h"

namespace millrace {
namespace {

TEST_CASE("products of known result are right on the CPU, of any size", "[doctor]") {
  const int64_t n = GENERATE(1, 2, 3, 64, 127, 300);
  CAPTURE(n);
  CHECK(KnownAnswerProducts(*MakeHostDevice(), CpuKernels(), Backend::kCpu, n) == "");
}

// One element of the result is off by one.
template <DType kDType, int64_t kRow, int64_t kColumn>
void Faulty(const MatmulOp<TensorView>& op, Stream& stream) {
  CpuKernels().matmul(op, stream);
  if (op.a.dtype() == kDType) op.out.as<float>()[kRow * op.out.dim(1) + kColumn] += 1;
}

TEST_CASE("one element that is wrong is named", "[doctor]") {
  KernelTable kernels = CpuKernels();
  kernels.matmul = Faulty<DType::kF32, 0, 0>;
  CHECK_THAT(KnownAnswerProducts(*MakeHostDevice(), kernels, Backend::kCpu, 64),
             Catch::Contains("f32 product") &&
                 Catch::Contains(" 1 of 4096 elements are wrong: [0, 0] is "));
  kernels.matmul = Faulty<DType::kBF16, 63, 62>;
  CHECK_THAT(KnownAnswerProducts(*MakeHostDevice(), kernels, Backend::kCpu, 64),
             Catch::Contains("bf16 product") &&
                 Catch::Contains(" 1 of 4096 elements are wrong: [63, 62] is "));
}

}  // namespace
}  // namespace millrace
