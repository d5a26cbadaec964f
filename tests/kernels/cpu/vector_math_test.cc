#include "kernels/cpu/vector_math.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace millrace::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Distance from the exact value in units of the float spacing there.
double Ulps(float got, double exact) {
  const double spacing = std::max(std::ldexp(1.0, std::ilogb(exact) - 23), 0x1p-149);
  return std::abs(static_cast<double>(got) - exact) / spacing;
}

TEST_CASE("Exp is within 2 ulp over all floats whose exponential is finite") {
  double worst = 0;
  float at = 0;
  // Every 61st bit pattern of both signs (a prime, so that low bits vary), and all of them where
  // the argument reduction changes its integer.
  const auto visit = [&](uint32_t bits) {
    const float x = std::bit_cast<float>(bits);
    if (!(std::abs(x) < 88.7f)) return;
    const double ulps = Ulps(Exp(x), std::exp(static_cast<double>(x)));
    if (ulps > worst) worst = ulps, at = x;
  };
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 61)
    visit(static_cast<uint32_t>(bits));
  for (int n = -127; n <= 127; ++n) {
    const auto middle = std::bit_cast<uint32_t>(static_cast<float>((n + 0.5) * 0.6931471805599453));
    for (uint32_t bits = middle - 50; bits != middle + 50; ++bits) visit(bits);
  }
  INFO("worst at " << at);
  CHECK(worst <= 2);
}

TEST_CASE("Exp at the ends of the range") {
  CHECK(Exp(0.0f) == 1.0f);
  CHECK(Exp(-0.0f) == 1.0f);
  CHECK(Exp(kInfinity) == kInfinity);
  CHECK(Exp(-kInfinity) == 0.0f);
  CHECK(Exp(88.8f) == kInfinity);
  CHECK(Exp(std::numeric_limits<float>::max()) == kInfinity);
  CHECK(Exp(-104.0f) == 0.0f);
  CHECK(Exp(std::numeric_limits<float>::lowest()) == 0.0f);
  CHECK(std::isnan(Exp(std::numeric_limits<float>::quiet_NaN())));
  // Subnormal results, to one unit of their spacing.
  for (const float x : {-87.5f, -90.0f, -100.0f, -103.0f})
    CHECK(Ulps(Exp(x), std::exp(static_cast<double>(x))) <= 1);
}

TEST_CASE("a loop over Exp gives the bits of single calls") {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-20, 20);
  std::vector<float> x(1003), loop(1003);
  for (float& v : x) v = uniform(random);
  for (size_t i = 0; i < x.size(); ++i) loop[i] = Exp(x[i]);
  bool same = true;
  for (size_t i = 0; i < x.size(); ++i) {
    volatile float one = x[i];
    same &= loop[i] == Exp(one);
  }
  CHECK(same);
}

TEST_CASE("reductions over every length, at every alignment, have the bits of the aligned one") {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t n = 0; n < 140; ++n) {
    std::vector<float> x(static_cast<size_t>(n) + 16, std::numeric_limits<float>::quiet_NaN()),
        y = x;
    std::vector<float> values(static_cast<size_t>(n)), others(values);
    for (float& v : values) v = uniform(random);
    for (float& v : others) v = uniform(random);
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    double dot = 0;
    for (size_t i = 0; i < values.size(); ++i) dot += double{values[i]} * double{others[i]};
    float max = -kInfinity;
    for (const float v : values) max = std::max(max, v);
    const float first_sum = Sum(values.data(), n), first_dot = Dot(values.data(), others.data(), n);
    const double bound = static_cast<double>(n + 1) * static_cast<double>(n) * 0x1p-24;
    CHECK(std::abs(first_sum - sum) <= bound);
    CHECK(std::abs(first_dot - dot) <= bound);
    // In double: products of floats are exact, and only the order of additions differs.
    const double double_sum = SumInDouble(values.data(), n);
    const double double_dot = DotInDouble(values.data(), others.data(), n);
    const double deviations = SumSquaredDeviationsInDouble(values.data(), 0.25, n);
    double exact_deviations = 0;
    for (const float v : values) exact_deviations += (v - 0.25) * (v - 0.25);
    CHECK(std::abs(double_sum - sum) <= bound * 0x1p-29);
    CHECK(std::abs(double_dot - dot) <= bound * 0x1p-29);
    CHECK(std::abs(deviations - exact_deviations) <= 4 * bound * 0x1p-29);
    for (int shift = 0; shift < 9; ++shift) {
      std::copy(values.begin(), values.end(), x.begin() + shift);
      std::copy(others.begin(), others.end(), y.begin() + shift);
      CHECK(Sum(x.data() + shift, n) == first_sum);
      CHECK(Dot(x.data() + shift, y.data() + shift, n) == first_dot);
      CHECK(SumInDouble(x.data() + shift, n) == double_sum);
      CHECK(DotInDouble(x.data() + shift, y.data() + shift, n) == double_dot);
      CHECK(SumSquaredDeviationsInDouble(x.data() + shift, 0.25, n) == deviations);
      CHECK(Max(x.data() + shift, n) == max);
    }
  }
}

TEST_CASE("Sqrt is correctly rounded in blocks and in the tail") {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(0, 10);
  std::vector<float> x(37);
  for (float& v : x) v = uniform(random);
  std::vector<float> roots = x;
  Sqrt(roots.data(), static_cast<int64_t>(roots.size()));
  for (size_t i = 0; i < x.size(); ++i)
    CHECK(roots[i] == static_cast<float>(std::sqrt(static_cast<double>(x[i]))));
}

}  // namespace
}  // namespace millrace::cpu
