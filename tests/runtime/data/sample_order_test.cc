#include "runtime/data/tokens/sample_order.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <vector>

#include "runtime/base/error.h"

namespace millrace {
namespace {

TEST_CASE("the permutation is a bijection of every small range, and differs by seed and stream",
          "[data][order]") {
  for (int64_t n = 1; n <= 200; ++n) {
    for (const uint64_t seed : {0ull, 1ull, 0x9e3779b97f4a7c15ull}) {
      const Permutation permutation(n, seed, 5);
      std::vector<int> seen(n, 0);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t value = permutation(i);
        REQUIRE(value >= 0);
        REQUIRE(value < n);
        ++seen[value];
        REQUIRE(permutation.Inverse(value) == i);
      }
      REQUIRE(std::count(seen.begin(), seen.end(), 1) == n);
    }
    if (n >= 16) {  // below, two of n! orders may well agree
      const auto order = [n](uint64_t seed, uint64_t stream) {
        std::vector<int64_t> values(n);
        for (int64_t i = 0; i < n; ++i) values[i] = Permutation(n, seed, stream)(i);
        return values;
      };
      REQUIRE(order(0, 0) != order(1, 0));
      REQUIRE(order(0, 0) != order(0, 1));
    }
  }
}

TEST_CASE("the permutation is a bijection of large ranges", "[data][order]") {
  // Whole ranges around powers of two and four, and a large prime.
  for (const int64_t n : {4095, 4096, 4097, 65537, 99991, 262144, 1000003}) {
    const Permutation permutation(n, 42, 0);
    std::vector<bool> seen(n, false);
    for (int64_t i = 0; i < n; ++i) seen[permutation(i)] = true;
    CAPTURE(n);
    REQUIRE(std::count(seen.begin(), seen.end(), true) == n);
  }
  // Too large to enumerate: an inverse proves injectivity on what is sampled, ends included.
  for (const int64_t n : {int64_t{999999999989}, (int64_t{1} << 61) - 1, int64_t{1} << 62}) {
    const Permutation permutation(n, 42, 0);
    for (int64_t k = 0; k < 2000; ++k) {
      const int64_t i = k < 1000 ? k * (n / 1000) : n - 1 - (k - 1000);
      const int64_t value = permutation(i);
      REQUIRE((value >= 0 && value < n));
      REQUIRE(permutation.Inverse(value) == i);
    }
  }
}

TEST_CASE("neighbours are scattered: no correlation between position and window", "[data][order]") {
  const int64_t n = 10007;
  const Permutation permutation(n, 1, 0);
  double products = 0, steps = 0;
  const double mean = double(n - 1) / 2, variance = (double(n) * n - 1) / 12;
  for (int64_t i = 0; i < n; ++i) {
    products += (i - mean) * (permutation(i) - mean);
    if (i > 0) steps += (permutation(i) - mean) * (permutation(i - 1) - mean);
  }
  REQUIRE(std::fabs(products / (n * variance)) < 4 / std::sqrt(double(n)));  // four standard errors
  REQUIRE(std::fabs(steps / (n * variance)) < 4 / std::sqrt(double(n)));
}

TEST_CASE("every small permutation position is reached about equally often over seeds",
          "[data][order]") {
  // Chi-squared of where each i of [0, 10) lands over 4000 seeds: 9 * 9 degrees of freedom, mean
  // 81, deviation 12.7.
  const int64_t n = 10, seeds = 4000;
  std::vector<double> counts(n * n, 0);
  for (int64_t seed = 0; seed < seeds; ++seed)
    for (int64_t i = 0; i < n; ++i) ++counts[i * n + Permutation(n, seed, 0)(i)];
  double chi = 0;
  for (const double count : counts) chi += (count - seeds / n) * (count - seeds / n) / (seeds / n);
  REQUIRE(chi < 81 + 5 * 12.7);
}

TEST_CASE("the order is fixed for ever: known answers", "[data][order]") {
  // A run that resumes with another build must see the same data: these numbers may never change.
  const SampleOrder order(1000, 0);
  std::vector<int64_t> first(8);
  for (int64_t s = 0; s < 8; ++s) first[s] = order.Window(s);
  REQUIRE(first == std::vector<int64_t>{885, 64, 152, 706, 906, 267, 497, 673});
  REQUIRE(order.Window(1000) == 877);
  REQUIRE(order.Window(1000000000000) == 93);
  REQUIRE(SampleOrder(999999999989, 7).Window(123456789012345) == 685978329048);
}

TEST_CASE("each epoch uses every window exactly once, in an order of its own", "[data][order]") {
  const int64_t n = GENERATE(1, 2, 7, 64, 1009);
  const SampleOrder order(n, 3);
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<int64_t> windows(n);
    for (int64_t i = 0; i < n; ++i) {
      REQUIRE(order.Epoch(epoch * n + i) == epoch);
      windows[i] = order.Window(epoch * n + i);
    }
    std::vector<int64_t> sorted = windows, all(n);
    std::sort(sorted.begin(), sorted.end());
    std::iota(all.begin(), all.end(), 0);
    REQUIRE(sorted == all);
    for (const std::vector<int64_t>& earlier : epochs)
      if (n >= 64) REQUIRE(earlier != windows);
    epochs.push_back(std::move(windows));
  }
}

TEST_CASE("a step's samples do not depend on how the world divides them", "[data][order]") {
  const int64_t global = 24;
  const SampleOrder order(101, 11);
  for (const int64_t world : {1, 2, 3, 4, 6, 8, 12, 24}) {
    for (int64_t micro_batch = 1; micro_batch <= global / world; ++micro_batch) {
      if (global % (world * micro_batch) != 0) continue;
      const StepLayout layout{
          .world = world, .micro_batch = micro_batch, .accumulate = global / world / micro_batch};
      REQUIRE(layout.GlobalBatch() == global);
      for (const int64_t step : {0, 1, 5, 1000}) {
        // Reading ranks and rows in the order of the layout gives the samples of the step in order.
        int64_t expected = step * global;
        for (int64_t m = 0; m < layout.accumulate; ++m)
          for (int64_t rank = 0; rank < world; ++rank)
            for (int64_t row = 0; row < micro_batch; ++row) {
              const StepLayout::Place place{
                  .step = step, .microbatch = m, .rank = rank, .row = row};
              REQUIRE(layout.Sample(place) == expected);
              REQUIRE(layout.PlaceOf(expected) == place);
              ++expected;
            }
      }
    }
  }
}

TEST_CASE("impossible arguments are errors", "[data][order]") {
  REQUIRE_THROWS_AS(Permutation(0, 0, 0), Error);
  REQUIRE_THROWS_AS(Permutation((int64_t{1} << 62) + 1, 0, 0), Error);
  REQUIRE_THROWS_AS(SampleOrder(0, 0), Error);
  const Permutation permutation(10, 0, 0);
  REQUIRE_THROWS_AS(permutation(-1), Error);
  REQUIRE_THROWS_AS(permutation(10), Error);
  REQUIRE_THROWS_AS(permutation.Inverse(10), Error);
  REQUIRE_THROWS_AS(SampleOrder(5, 0).Window(-1), Error);
  const StepLayout layout{.world = 2, .micro_batch = 3, .accumulate = 4};
  REQUIRE_THROWS_AS(layout.Sample({.step = 0, .microbatch = 4, .rank = 0, .row = 0}), Error);
  REQUIRE_THROWS_AS(layout.Sample({.step = 0, .microbatch = 0, .rank = 2, .row = 0}), Error);
  REQUIRE_THROWS_AS(layout.Sample({.step = 0, .microbatch = 0, .rank = 0, .row = 3}), Error);
  REQUIRE_THROWS_AS(layout.Sample({.step = -1, .microbatch = 0, .rank = 0, .row = 0}), Error);
}

}  // namespace
}  // namespace millrace
