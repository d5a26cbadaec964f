// Stochastic rounding has no bias: over all random bits the mean is the value itself.
#include "kernels/ops/rounding.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <set>

namespace millrace {
namespace {

TEST_CASE("over all bits the mean of what a value is rounded to is the value", "[rounding]") {
  for (const float value : {1.0f, 1.00390625f, 1.001f, -3.14159f, 2.7e-12f, -1e-39f, 65504.3f}) {
    double sum = 0;
    std::set<float> results;
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float rounded = ToFloat(RoundStochastically(value, bits));
      sum += static_cast<double>(rounded);
      results.insert(rounded);
    }
    INFO(value);
    CHECK(results.size() <= 2);
    // Sums of 2^16 values of 8 bits are exact in double, and so is this product.
    CHECK(sum == 65536 * static_cast<double>(value));
  }
}

TEST_CASE("what bf16 holds stays, and so do infinities and NaN", "[rounding]") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const uint32_t bits : {0u, 1u, 0x8000u, 0xffffu}) {
    for (const float value : {0.0f, -0.0f, 0.75f, -0x1.8p66f, kInf, -kInf}) {
      INFO(value << " bits " << bits);
      CHECK(RoundStochastically(value, bits) == ToBFloat16(value));
    }
    CHECK(std::isnan(ToFloat(RoundStochastically(std::nanf(""), bits))));
  }
}

// Of n values rounded up with probability p, the share that is differs from p by less than five
// standard deviations, sqrt(p (1 - p) / n), but for one time in 10^6. Nearest would give 0 or 1.
TEST_CASE("the generator's words round as often as they have to", "[rounding]") {
  constexpr int64_t kElements = 1 << 18;
  for (const double share : {0.125, 0.3, 0.5, 0.9}) {
    const auto value = static_cast<float>(1 + share / 128);  // between 1 and its neighbour
    for (const uint64_t key : {uint64_t{1}, uint64_t{0x9e3779b97f4a7c15}})
      for (const int64_t t : {1, 2, 100000}) {
        int64_t up_m = 0, up_v = 0, both = 0;
        for (int64_t group = 0; group < kElements / 4; ++group)
          for (const uint32_t word : MomentWords(key, group, t)) {
            const bool m = ToFloat(RoundStochastically(value, word & 0xffffu)) > 1;
            const bool v = ToFloat(RoundStochastically(value, word >> 16)) > 1;
            up_m += m, up_v += v, both += m && v;
          }
        const double exact = (static_cast<double>(value) - 1) * 128;
        const auto near = [&](int64_t count, double p) {
          CHECK(std::abs(static_cast<double>(count) / kElements - p) <
                5 * std::sqrt(p * (1 - p) / kElements));
        };
        INFO("share " << share << ", key " << key << ", t " << t);
        near(up_m, exact);
        near(up_v, exact);
        near(both, exact * exact);  // they do not go together
      }
  }
}

}  // namespace
}  // namespace millrace
