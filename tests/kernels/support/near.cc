#include "tests/kernels/support/near.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/base/error.h"
#include "tests/kernels/support/memory.h"

namespace millrace::test {

void CheckNear(const TensorView& got, const Reference& reference, const char* name) {
  MR_CHECK_EQ(got.numel(), static_cast<int64_t>(reference.size()),
              "elements of {} and its reference", name);
  const double half_ulp = got.dtype() == DType::kBF16  ? 0x1p-8
                          : got.dtype() == DType::kF16 ? 0x1p-11
                          : got.dtype() == DType::kF32 ? kU
                                                       : 0;
  // Below the normal range the spacing is absolute.
  const double tiny = got.dtype() == DType::kF16 ? 0x1p-25 : 0x1p-126;
  double worst = 0, worst_got = 0;
  Expected worst_expected;
  Index where{};
  size_t n = 0;
  ForEach(got.layout, [&](const Index& i) {
    const Expected& e = reference[n++];
    const double value = Get(got, i);
    const double allowed = e.bound + half_ulp * (std::abs(e.value) + e.bound) + tiny;
    const double ratio = std::abs(value - e.value) / allowed;
    if (!(ratio <= worst)) {  // also for NaN, once
      if (std::isnan(worst)) return;
      worst = ratio, worst_got = value, worst_expected = e, where = i;
    }
  });
  INFO(name << ' ' << ToString(got.layout) << ": error / bound = " << worst << " at [" << where[0]
            << ", " << where[1] << ", " << where[2] << ", " << where[3] << "]: " << worst_got
            << ", expected " << worst_expected.value << " within " << worst_expected.bound
            << " before rounding");
  CHECK(worst <= 1);
}

}  // namespace millrace::test
