// Start and rate of a link: exact lines are found again, and no noise makes them negative.
#include "runtime/plan/cost/link_fit.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace millrace {
namespace {

TEST_CASE("a line is found again, whatever its sizes", "[plan][cost]") {
  const double start = 7e-6, rate = 3e11;
  std::vector<TimedBytes> points;
  for (double bytes = 1 << 15; bytes < 1e9; bytes *= 4)
    points.push_back({bytes, start + bytes / rate});
  const LinkFit fit = FitLink(points);
  CHECK(std::abs(fit.start / start - 1) < 1e-9);
  CHECK(std::abs(fit.rate / rate - 1) < 1e-9);
}

TEST_CASE("a line that would begin below zero goes through it", "[plan][cost]") {
  // 1 us at 1000 bytes, 11 us at 10,000: through 0 the relative errors are least at a slope of
  // (1e9 + 1e9/1.1) / (1e18 + 1e18/1.21) s per byte.
  const LinkFit fit = FitLink({{1000, 1e-6}, {10000, 11e-6}});
  CHECK(fit.start == 0);
  CHECK(std::abs(fit.rate * (1e9 + 1e9 / 1.1) / (1e18 + 1e18 / 1.21) - 1) < 1e-12);
}

TEST_CASE("times that do not grow give the rate of the largest call", "[plan][cost]") {
  for (const double larger : {2e-6, 5e-6}) {
    const LinkFit fit = FitLink({{1000, 5e-6}, {10000, 7e-6}, {100000, larger}, {4000, 3e-6}});
    INFO(fit.start << " " << fit.rate);
    CHECK(fit.start >= 0);
    CHECK(fit.rate > 0);
  }
  CHECK(FitLink({{1000, 5e-6}, {10000, 2e-6}}).rate == 10000 / 2e-6);
  CHECK(FitLink({{4096, 2e-6}}).rate == 4096 / 2e-6);
}

}  // namespace
}  // namespace millrace
