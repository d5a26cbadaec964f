#include "kernels/ops/sample_row.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

namespace millrace {
namespace {

// Each of ten roundings of the series is within 2^-24 of a number near 1, the first half of them
// times a small power; the cut to integers loses less than 2^-30 of what is left, or one.
TEST_CASE("a weight is e^-y in units of 2^-40", "[kernels]") {
  REQUIRE(SampleWeight(3, 3, 0.5f) == uint64_t{1} << 40);
  int64_t distinct = 0;
  uint64_t before = 0;
  for (const float temperature : {1.0f, 0.3f, 7.0f}) {
    for (int i = 1; i < 30000; ++i) {
      const float logit = -static_cast<float>(i) / 997 * temperature;
      const float y = (0.0f - logit) / temperature;  // in f32, as the definition says
      const uint64_t weight = SampleWeight(0, logit, temperature);
      const double expected = y < 28 ? std::exp(-static_cast<double>(y)) * 0x1p40 : 0;
      if (std::abs(static_cast<double>(weight) - expected) > expected * 0x1p-22 + 1)
        FAIL("temperature " << temperature << ", logit " << logit << ": " << weight << ", not "
                            << expected);
      distinct += weight != before;
      before = weight;
    }
  }
  CHECK(distinct > 60000);  // of 90,000; small weights are few integers
  CHECK(SampleWeight(0, -28, 1) == 0);
  CHECK(SampleWeight(3e38f, -3e38f, 1) == 0);
  CHECK(SampleWeight(1, 0, std::numeric_limits<float>::denorm_min()) == 0);
  CHECK(SampleWeight(-5, -5, std::numeric_limits<float>::denorm_min()) == uint64_t{1} << 40);
}

TEST_CASE("the likeliest tokens are in order, ties by the lower id", "[kernels]") {
  const std::vector<float> logits = {1, 3, -0.0f, 3, 0, -2, 3};
  CHECK(LikeliestTokens(logits, 0).empty());
  CHECK(LikeliestTokens(logits, 5) == std::vector<int32_t>{1, 3, 6, 0, 2});
  CHECK(LikeliestTokens(logits, 99) == std::vector<int32_t>{1, 3, 6, 0, 2, 4, 5});
  CHECK(AllFinite(logits));
  CHECK_FALSE(AllFinite(std::vector<float>{0, NAN}));
  CHECK_FALSE(AllFinite(std::vector<float>{-INFINITY, 0}));
}

// The first of four equal tokens has the first quarter of draws, and so on.
TEST_CASE("ties share a draw by their ids", "[kernels]") {
  const std::vector<float> logits = {-9, 2, 2, -9, 2, 2};
  SampleParams params;
  params.top_k = 4;
  std::vector<int> counts(logits.size());
  for (params.drawn = 0; params.drawn < 4000; ++params.drawn)
    ++counts[static_cast<size_t>(SampleToken(logits, params))];
  CHECK(counts[0] + counts[3] == 0);
  for (const size_t id : {1, 2, 4, 5}) CHECK(std::abs(counts[id] - 1000) < 110);  // four sigma
  params.top_k = 2;
  for (params.drawn = 0; params.drawn < 200; ++params.drawn) {
    const int32_t token = SampleToken(logits, params);
    REQUIRE((token == 1 || token == 2));
  }
}

}  // namespace
}  // namespace millrace
