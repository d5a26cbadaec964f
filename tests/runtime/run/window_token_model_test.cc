// A model without caches gives tokens the log-probabilities of the training forward.
#include "runtime/run/generate/window_token_model.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/config/load.h"
#include "runtime/run/eval/score.h"
#include "tests/support/ranks.h"

namespace millrace {
namespace {

Config ConfigOf(int world) {
  const std::vector<ConfigText> texts = {{"test.json", R"({
    "model": {"family": "llama", "layers": 2, "d_model": 32, "heads": 4, "kv_heads": 2, "ffn": 48,
              "vocab": 61, "seq_len": 16, "init_std": 0.3},
    "data": {"kind": "synthetic"},
    "train": {"seed": 7, "micro_batch": 2},
    "checkpoint": {"every": 0}})"}};
  return LoadConfigTexts(texts, {}, ConfigContext{.world = world}).config;
}

// As long as a window and the token behind it.
std::vector<int32_t> Text() {
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 17; ++i) text.push_back((i * i * 5 + 3 * i + 1) % 61);
  return text;
}

TEST_CASE("tokens that are given have the log-probabilities of the plan score") {
  for (const int world : {1, 2}) {
    const Config config = ConfigOf(world);
    test::TestRanks().Run(world, [&](const test::RankSetup& setup) {
      Session session(config, setup.environment(), {{"score", "generate"}, false});
      session.InitWeights();
      const std::vector<int32_t> text = Text();
      const std::vector<double> expected =
          Score(session, std::vector<std::vector<int32_t>>{text}, {}).front();
      WindowTokenModel model(session);
      // A prompt that is scored in pieces, in a slot that has had another sequence.
      const std::vector<int32_t> pages = {0};
      model.Prefill({.slot = 3, .tokens = std::vector<int32_t>{9, 9}, .pages = pages});
      const std::span<const int32_t> tokens = text;
      std::vector<SampledToken> scores(16);
      for (const auto& [begin, count] : {std::pair{size_t{0}, size_t{1}}, {1, 5}, {6, 10}})
        model.Score({.slot = 3,
                     .tokens = tokens.subspan(begin, count),
                     .first = static_cast<int64_t>(begin),
                     .pages = pages,
                     .next = tokens.subspan(begin + 1, count),
                     .top = 4},
                    std::span(scores).subspan(begin, count));
      for (size_t i = 0; i < scores.size(); ++i) {
        // Of sums of 61 terms, in f32 and in f64.
        MR_CHECK(
            scores[i].token == text[i + 1] && std::abs(scores[i].logprob - expected[i]) <= 4e-6,
            "token {}: {} ({}), the training forward has {} ({})", i + 1, scores[i].token,
            scores[i].logprob, text[i + 1], expected[i]);
        MR_CHECK(scores[i].top.size() == 4 && scores[i].top[0].second >= scores[i].logprob,
                 "token {}: {} likeliest ones", i + 1, scores[i].top.size());
      }
      // The draw behind the same tokens is the likeliest of what was scored there.
      const Sampling greedy{.temperature = 0, .top = 4};
      const SampledToken drawn = model.Prefill(
          {.slot = 5, .tokens = tokens.first(16), .pages = pages, .sampling = &greedy});
      MR_CHECK(drawn.top == scores.back().top, "likeliest tokens behind {} tokens", 16);
    });
  }
}

}  // namespace
}  // namespace millrace
