// What prefill and decode draw: tokens of the host sampler, by parameters of each row's own, with
// log-probabilities that have the bits of the score plan's; and so have those of a prompt's tokens.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <span>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/run/eval/score.h"
#include "runtime/run/generate/host_sampler.h"
#include "runtime/run/generate/inference_plans.h"
#include "tests/system/generate/cached_sequences.h"

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
void Draw(RankContext& rank, EngineTokenModel& model, std::vector<Drawing>& drawings) {
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

// All tokens of a drawing as a prompt, scored in pieces of several sizes: of its answer they have
// the log-probabilities with which it was drawn. Returns those of all.
std::vector<float> Score(EngineTokenModel& model, int64_t slot, const Drawing& drawing) {
  const std::span<const int32_t> tokens = drawing.tokens;
  const std::vector<int64_t> pieces = {model.limits().max_scored, 1, 3, 4};
  std::vector<float> logprobs;
  for (size_t piece = 0; logprobs.size() + 1 < tokens.size(); ++piece) {
    const size_t begin = logprobs.size(),
                 count = std::min(static_cast<size_t>(pieces[piece % pieces.size()]),
                                  tokens.size() - 1 - begin);
    std::vector<SampledToken> scores(count);
    model.Score({.slot = slot,
                 .tokens = tokens.subspan(begin, count),
                 .first = static_cast<int64_t>(begin),
                 .pages = drawing.pages,
                 .next = tokens.subspan(begin + 1, count),
                 .top = drawing.sampling.top},
                scores);
    for (size_t i = 0; i < count; ++i) {
      MR_CHECK_EQ(scores[i].token, tokens[begin + 1 + i], "the token that is scored");
      MR_CHECK_EQ(std::ssize(scores[i].top), int64_t{drawing.sampling.top}, "likeliest tokens");
      logprobs.push_back(scores[i].logprob);
    }
  }
  return logprobs;
}

// As the first of a microbatch: there rows have the bits that those of generation have.
void RequireScores(RankContext& rank, const Config& config, const Drawing& drawing,
                   const std::vector<float>& scored) {
  std::vector<int32_t> batch = drawing.tokens;
  batch.resize(static_cast<size_t>(config.model.seq_len + 1));
  for (int64_t b = 1; b < config.train.micro_batch; ++b) {
    const std::vector<int32_t> other = TokensOfSample(config, b);
    batch.insert(batch.end(), other.begin(), other.end());
  }
  const std::vector<double> losses = TokenLosses(rank.engine, batch);
  const auto require = [&](size_t position, float logprob, const char* how) {
    const auto score = static_cast<float>(-losses[position]);
    MR_CHECK(std::bit_cast<uint32_t>(score) == std::bit_cast<uint32_t>(logprob),
             "token {} behind a prompt of {}: log-probability {}, {}; its score is {}",
             position + 1, drawing.prompt, logprob, how, score);
  };
  for (size_t i = 0; i < drawing.logprobs.size(); ++i)
    require(static_cast<size_t>(drawing.prompt) - 1 + i, drawing.logprobs[i], "drawn");
  for (size_t i = 0; i < scored.size(); ++i) require(i, scored[i], "of the prompt");
}

void RequireDrawings(Trial trial) {
  trial.plans = {"train", "score", "inference"};
  RunEngines(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed));
    StepOn(rank, trial.config, 0);
    std::vector<Drawing> drawings = DrawingsOf(trial.config);
    EngineTokenModel model(rank.engine, trial.config);
    MR_CHECK_EQ(model.limits().top, std::min<int64_t>(64, kVocab), "likeliest tokens");
    model.Enter();
    Draw(rank, model, drawings);
    std::vector<std::vector<float>> scored;
    for (size_t i = 0; i < drawings.size(); ++i)
      scored.push_back(Score(model, static_cast<int64_t>(i), drawings[i]));
    for (size_t i = 0; i < drawings.size(); ++i) {
      MR_CHECK_EQ(std::ssize(drawings[i].logprobs), drawings[i].answer, "tokens of an answer");
      MR_CHECK_EQ(scored[i].size() + 1, drawings[i].tokens.size(), "tokens of a prompt, scored");
      RequireScores(rank, trial.config, drawings[i], scored[i]);
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
