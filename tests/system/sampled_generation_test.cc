// What prefill and decode draw: tokens of the host sampler, by parameters of each row's own, with
// log-probabilities that have the bits of the score plan's.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/run/host_sampler.h"
#include "runtime/run/inference_plans.h"
#include "runtime/run/score.h"
#include "tests/system/cached_sequences.h"

namespace millrace::test {
namespace {

constexpr int64_t kVocab = 61;  // of GeneratingTrial

// Of a sequence: its prompt, what its tokens are drawn by, and as many as are drawn.
struct Drawing {
  int64_t prompt = 0, answer = 0;
  Sampling sampling = {};
  std::vector<int32_t> tokens = {}, pages = {};
  std::vector<float> logprobs = {};  // of the answer
};

std::vector<Drawing> DrawingsOf(const Config& config) {
  std::vector<Drawing> drawings = {
      {.prompt = 5, .answer = 60, .sampling = {.temperature = 0, .seed = 1, .top = 3}},
      {.prompt = 24, .answer = 41, .sampling = {.seed = 2}},
      {.prompt = 1,
       .answer = 79,
       .sampling = {.temperature = 0.7f, .top_k = 5, .seed = 3, .top = 20}},
      {.prompt = 17,
       .answer = 30,
       .sampling = {.temperature = 1.5f, .top_p = 0.8f, .seed = 4, .top = 1}},
      {.prompt = 4, .answer = 55, .sampling = {.min_p = 0.5f, .seed = 5, .top = 2}},
      {.prompt = 9,
       .answer = 20,
       .sampling = {
           .temperature = 2, .top_k = 40, .top_p = 0.9f, .min_p = 0.05f, .seed = 6, .top = 7}}};
  const int64_t pages = config.inference.PagesOfSequence(config.model.seq_len);
  for (size_t i = 0; i < drawings.size(); ++i) {
    Drawing& d = drawings[i];
    d.tokens = TokensOfSample(config, 7000 + static_cast<int64_t>(i));
    d.tokens.resize(static_cast<size_t>(d.prompt));
    for (int64_t p = 0; p < pages; ++p)
      d.pages.push_back(static_cast<int32_t>(p * std::ssize(drawings)) + static_cast<int32_t>(i));
  }
  return drawings;
}

// The host's draw from the logits that `plan` gave of row `row`; what the plan drew is that.
void RequireDrawn(RankContext& rank, const std::string& plan, int64_t row, int64_t rows,
                  Drawing& drawing, const SampledToken& sampled) {
  const int64_t padded = rank.run.plans.Of(plan).FindOutput("logits")->layout.numel() / rows;
  std::vector<float> logits(static_cast<size_t>((row + 1) * padded));
  rank.engine.ReadOutput(plan, "logits", logits.data(), std::ssize(logits) * 4);
  const SampledToken host =
      DrawToken(std::span(logits).subspan(static_cast<size_t>(row * padded), kVocab),
                drawing.sampling, std::ssize(drawing.logprobs));
  // Of sums of 61 terms in f32 and in f64.
  const auto near = [](float a, float b) { return std::abs(a - b) <= 4e-6f; };
  MR_CHECK(sampled.token == host.token && near(sampled.logprob, host.logprob) &&
               sampled.top.size() == host.top.size(),
           "row {} of {}: token {} ({}), the host draws {} ({})", row, plan, sampled.token,
           sampled.logprob, host.token, host.logprob);
  for (size_t i = 0; i < host.top.size(); ++i)
    MR_CHECK(sampled.top[i].first == host.top[i].first &&
                 near(sampled.top[i].second, host.top[i].second),
             "row {} of {}: token {} at place {}, the host has {}", row, plan, sampled.top[i].first,
             i, host.top[i].first);
  drawing.tokens.push_back(sampled.token);
  drawing.logprobs.push_back(sampled.logprob);
}

// Rows come in another order at each step, and sequences end one by one.
void Draw(RankContext& rank, const Config& config, std::vector<Drawing>& drawings) {
  EngineTokenModel model(rank.engine, config);
  MR_CHECK_EQ(model.limits().top, std::min<int64_t>(64, config.model.Vocab()), "likeliest tokens");
  model.Enter();
  for (size_t i = 0; i < drawings.size(); ++i) {
    Drawing& d = drawings[i];
    const int64_t size = d.prompt <= 4 ? 4 : 24;
    const SampledToken sampled = model.Prefill({.slot = static_cast<int64_t>(i),
                                                .tokens = d.tokens,
                                                .pages = d.pages,
                                                .sampling = &d.sampling});
    RequireDrawn(rank, PrefillPlan(size), 0, 1, d, sampled);
  }
  for (int64_t step = 0;; ++step) {
    std::vector<size_t> active;
    for (size_t i = 0; i < drawings.size(); ++i)
      if (std::ssize(drawings[i].logprobs) < drawings[i].answer) active.push_back(i);
    if (active.empty()) return;
    std::rotate(active.begin(), active.begin() + step % std::ssize(active), active.end());
    std::vector<DecodeRow> rows;
    for (const size_t i : active) {
      const Drawing& d = drawings[i];
      rows.push_back({.slot = static_cast<int64_t>(i),
                      .length = std::ssize(d.tokens) - 1,
                      .token = d.tokens.back(),
                      .drawn = std::ssize(d.logprobs),
                      .pages = d.pages,
                      .sampling = &d.sampling});
    }
    std::vector<SampledToken> sampled(rows.size());
    model.Decode(rows, sampled);
    const int64_t size = rows.size() == 1 ? 1 : rows.size() <= 3 ? 3 : 6;
    for (size_t i = 0; i < active.size(); ++i)
      RequireDrawn(rank, DecodePlan(size), static_cast<int64_t>(i), size, drawings[active[i]],
                   sampled[i]);
  }
}

// As the first of a microbatch: there rows have the bits that those of generation have.
void RequireScores(RankContext& rank, const Config& config, const Drawing& drawing) {
  std::vector<int32_t> batch = drawing.tokens;
  batch.resize(static_cast<size_t>(config.model.seq_len + 1));
  for (int64_t b = 1; b < config.train.micro_batch; ++b) {
    const std::vector<int32_t> other = TokensOfSample(config, b);
    batch.insert(batch.end(), other.begin(), other.end());
  }
  const std::vector<double> losses = TokenLosses(rank.engine, batch);
  for (size_t i = 0; i < drawing.logprobs.size(); ++i) {
    const auto score = static_cast<float>(-losses[static_cast<size_t>(drawing.prompt) - 1 + i]);
    MR_CHECK(std::bit_cast<uint32_t>(score) == std::bit_cast<uint32_t>(drawing.logprobs[i]),
             "token {} of an answer to a prompt of {}: log-probability {}, its score is {}", i,
             drawing.prompt, drawing.logprobs[i], score);
  }
}

void RequireDrawings(Trial trial) {
  trial.plans = {"train", "score", "inference"};
  RunEngines(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed));
    StepOn(rank, trial.config, 0);
    std::vector<Drawing> drawings = DrawingsOf(trial.config);
    Draw(rank, trial.config, drawings);
    for (const Drawing& drawing : drawings) {
      MR_CHECK_EQ(std::ssize(drawing.logprobs), drawing.answer, "tokens of an answer");
      RequireScores(rank, trial.config, drawing);
    }
  });
}

TEST_CASE("plans draw the host sampler's tokens, and say of them what the score plan says") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama,
                            ModelConfig::Family::kQwen3, ModelConfig::Family::kNemotronH})
    for (const auto precision : {Precision::kFp32, Precision::kBf16})
      CHECK_NOTHROW(RequireDrawings(GeneratingTrial(family, precision)));
}

TEST_CASE("so they do on ranks along tensor, whose rows go strip by strip") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama,
                            ModelConfig::Family::kQwen3, ModelConfig::Family::kNemotronH})
    for (const auto& [tensor, strips] : {std::pair{2, 1}, {2, 5}, {4, 4}}) {
      if (family == ModelConfig::Family::kNemotronH && tensor > 2) continue;  // two groups
      Trial trial =
          GeneratingTrial(family, strips == 4 ? Precision::kFp32 : Precision::kBf16, tensor);
      trial.config.parallel.tensor = tensor;
      trial.config.parallel.tensor_strips = strips;
      CHECK_NOTHROW(RequireDrawings(trial));
    }
}

}  // namespace
}  // namespace millrace::test
