#include "runtime/data/tokens/blend.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/base/json.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

std::vector<int64_t> Draws(const Blend& blend, int64_t count) {
  BlendState state = blend.Begin();
  std::vector<int64_t> draws;
  for (int64_t i = 0; i < count; ++i) draws.push_back(blend.Draw(state));
  return draws;
}

using Draw = std::vector<int64_t>;

// By hand: behind[i] before each draw, the largest drawn, the first among equals.
//   k=0 (as 1)  .5 .3 .2      -> 0
//   k=1  -.5 .3 .2            -> 1
//   k=2   0 -.4 .4            -> 2
//   k=3  .5 -.1 -.4           -> 0
//   k=4   0  .2 -.2           -> 1
//   k=5  .5 -.5  0            -> 0
//   k=6   0 -.2 .2            -> 2
//   k=7  .5  .1 -.6           -> 0
//   k=8   0  .4 -.4           -> 1
//   k=9  .5 -.3 -.2           -> 0
TEST_CASE("the source furthest behind its share is drawn", "[data][blend]") {
  REQUIRE(Draws(Blend({0.5, 0.3, 0.2}), 10) == Draw{0, 1, 2, 0, 1, 0, 2, 0, 1, 0});
  REQUIRE(Draws(Blend({5, 3, 2}), 10) == Draws(Blend({0.5, 0.3, 0.2}), 10));
  REQUIRE(Draws(Blend({1, 1, 1}), 7) == Draw{0, 1, 2, 0, 1, 2, 0});
  REQUIRE(Draws(Blend({1}), 4) == Draw{0, 0, 0, 0});
  // The rule looks at max(k, 1): the first draw goes to the largest share.
  REQUIRE(Draws(Blend({1, 3}), 4) == Draw{1, 0, 1, 1});
}

TEST_CASE("Megatron's own code draws the same, near-ties and all", "[data][blend]") {
  const nlohmann::json golden = ParseJson(ReadBytes("tests/golden/megatron/golden.json"));
  REQUIRE(golden.at("blends").size() == 9);
  for (const nlohmann::json& theirs : golden.at("blends")) {
    const Blend blend(theirs.at("weights").get<std::vector<double>>());
    CAPTURE(theirs.at("weights").dump());
    REQUIRE(Draws(blend, 200) == theirs.at("first").get<Draw>());
    BlendState state = blend.Begin();
    blend.Advance(state, 20000);
    REQUIRE(state.taken == theirs.at("taken").get<Draw>());
  }
}

TEST_CASE("any counters are within d - 1 draws below and one above their share", "[data][blend]") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 60; ++trial) {
    const auto d = static_cast<size_t>(1 + trial % 9);
    std::vector<double> weights(d);
    for (double& weight : weights) weight = std::exp(6.0 * random() / 4294967296.0);
    const Blend blend(weights);
    BlendState state = blend.Begin();
    for (int64_t k = 0; k < 3000; ++k) {
      blend.Draw(state);
      REQUIRE(state.sample == k + 1);
      for (size_t i = 0; i < d; ++i) {
        const double behind = blend.share(static_cast<int64_t>(i)) * static_cast<double>(k + 1) -
                              static_cast<double>(state.taken[i]);
        REQUIRE(behind > -1 - 1e-9);
        REQUIRE(behind < static_cast<double>(d) - 1 + 1e-9);
      }
      REQUIRE(blend.IsPossible(state));
    }
  }
}

TEST_CASE("to advance is to draw, from the beginning or from counters that were kept",
          "[data][blend]") {
  const Blend blend({0.62, 0.001, 0.379});
  const Draw draws = Draws(blend, 5000);
  BlendState walked = blend.Begin();
  for (const int64_t sample : {0, 1, 2, 17, 999, 4000}) {
    blend.Advance(walked, sample);
    BlendState fresh = blend.Begin();
    blend.Advance(fresh, sample);
    REQUIRE(fresh == walked);
    BlendState state = walked;
    for (int64_t k = sample; k < sample + 500; ++k)
      REQUIRE(blend.Draw(state) == draws[static_cast<size_t>(k)]);
  }
  BlendState one = Blend({3}).Begin();
  Blend({3}).Advance(one, int64_t{1} << 50);
  REQUIRE(one == BlendState{int64_t{1} << 50, {int64_t{1} << 50}});
}

TEST_CASE("counters that the rule cannot have led to are refused", "[data][blend]") {
  const Blend blend({0.5, 0.3, 0.2});
  REQUIRE(blend.IsPossible({10, {5, 3, 2}}));
  for (const BlendState& state : std::vector<BlendState>{{10, {5, 3}},
                                                         {10, {5, 3, 3}},
                                                         {10, {8, 1, 1}},
                                                         {100, {46, 34, 20}},
                                                         {0, {1, 0, -1}},
                                                         {-1, {0, 0, -1}}})
    REQUIRE(!blend.IsPossible(state));
}

TEST_CASE("weights are positive numbers", "[data][blend]") {
  RequireError(ErrorCode::kInvalidArgument, {"at least one"}, [] { Blend({}); });
  for (const double weight : {0.0, -1.0, std::nan(""), HUGE_VAL})
    RequireError(ErrorCode::kInvalidArgument, {"above 0"}, [&] { Blend({1, weight}); });
  RequireError(ErrorCode::kInvalidArgument, {"sum"}, [] { Blend({1e308, 1e308}); });
}

}  // namespace
}  // namespace millrace
