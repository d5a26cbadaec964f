// Tokens drawn on the host: which are left, and how often each is drawn.
#include "runtime/run/generate/host_sampler.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <vector>

namespace millrace {
namespace {

// Probabilities 1/2, 1/4, 1/8, 1/16, 1/16 of tokens 3, 0, 4, 1, 2, whatever is added to all logits.
const std::vector<float> kLogits = {9 + std::log(4.0f), 9, 9, 9 + std::log(8.0f),
                                    9 + std::log(2.0f)};

// How often each token is drawn, of 4000.
std::map<int32_t, int> Drawn(Sampling sampling) {
  std::map<int32_t, int> counts;
  for (int64_t i = 0; i < 4000; ++i) ++counts[DrawToken(kLogits, sampling, i).token];
  return counts;
}

std::vector<int32_t> Left(const Sampling& sampling) {
  std::vector<int32_t> tokens;
  for (const auto& [token, count] : Drawn(sampling)) tokens.push_back(token);
  return tokens;
}

TEST_CASE("cuts are made one after the other, over what is left", "[sampler]") {
  using Tokens = std::vector<int32_t>;
  CHECK(Left({}) == Tokens{0, 1, 2, 3, 4});
  CHECK(Left({.temperature = 0}) == Tokens{3});
  CHECK(Left({.top_k = 2}) == Tokens{0, 3});
  CHECK(Left({.top_k = 4}) == Tokens{0, 1, 3, 4});  // of equals the lower id
  CHECK(Left({.top_p = 0.49f}) == Tokens{3});
  CHECK(Left({.top_p = 0.51f}) == Tokens{0, 3});
  CHECK(Left({.top_p = 0.80f}) == Tokens{0, 3, 4});
  // Of the two that are left the first has 2/3.
  CHECK(Left({.top_k = 2, .top_p = 0.66f}) == Tokens{3});
  CHECK(Left({.top_k = 2, .top_p = 0.67f}) == Tokens{0, 3});
  CHECK(Left({.min_p = 0.24f}) == Tokens{0, 3, 4});
  CHECK(Left({.min_p = 0.26f}) == Tokens{0, 3});
  CHECK(Left({.min_p = 1}) == Tokens{3});
  // At temperature 2 probabilities go by their roots: the last are 0.35 of the first.
  CHECK(Left({.temperature = 2, .min_p = 0.35f}) == Tokens{0, 1, 2, 3, 4});
  CHECK(Left({.temperature = 2, .min_p = 0.36f}) == Tokens{0, 3, 4});
}

TEST_CASE("each token is drawn as often as is likely", "[sampler]") {
  const auto near = [](const std::map<int32_t, int>& counts, int32_t token, double probability) {
    const double deviation = std::sqrt(4000 * probability * (1 - probability));
    CHECK(std::abs(counts.at(token) - 4000 * probability) < 5 * deviation);
  };
  for (const uint64_t seed : {1, 2}) {
    const std::map<int32_t, int> all = Drawn({.seed = seed});
    near(all, 3, 1.0 / 2), near(all, 0, 1.0 / 4), near(all, 4, 1.0 / 8), near(all, 1, 1.0 / 16);
    const std::map<int32_t, int> two = Drawn({.top_k = 2, .seed = seed});
    near(two, 3, 2.0 / 3), near(two, 0, 1.0 / 3);
  }
}

TEST_CASE("a draw follows from seed and number alone; log-probabilities are the model's",
          "[sampler]") {
  const auto tokens = [](uint64_t seed, int64_t first) {
    std::vector<int32_t> drawn;
    for (int64_t i = 0; i < 50; ++i)
      drawn.push_back(DrawToken(kLogits, {.seed = seed}, first + i).token);
    return drawn;
  };
  CHECK(tokens(7, 0) == tokens(7, 0));
  CHECK(tokens(7, 0) != tokens(8, 0));
  CHECK(tokens(7, 0) != tokens(7, 1));
  const SampledToken token = DrawToken(kLogits, {.temperature = 0, .top_k = 1, .top = 3}, 0);
  CHECK(token.token == 3);
  CHECK(token.logprob == Approx(std::log(0.5)));
  REQUIRE(token.top.size() == 3);
  CHECK(token.top[1].first == 0);
  CHECK(token.top[1].second == Approx(std::log(0.25)));
  CHECK(token.top[2].first == 4);
  CHECK(DrawToken(kLogits, {.top = 9}, 0).top.size() == 5);
}

}  // namespace
}  // namespace millrace
