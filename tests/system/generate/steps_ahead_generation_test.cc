// Answers of a run's engine whose steps are launched ahead: bit for bit those of steps that are
// read one by one, however plans are executed.
#include <catch2/catch.hpp>
#include <functional>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/infer/generate_all.h"
#include "runtime/run/generate/inference_plans.h"
#include "tests/system/generate/cached_sequences.h"

namespace millrace::test {
namespace {

// A model of which two steps may be in flight, or one, on a host device, too.
class LimitedModel final : public TokenModel {
 public:
  LimitedModel(TokenModel& model, bool steps_ahead) : model_(model), limits_(model.limits()) {
    limits_.steps_ahead = steps_ahead;
  }
  const TokenModelLimits& limits() const override { return limits_; }
  SampledToken Prefill(const PrefillRows& rows) override { return model_.Prefill(rows); }
  void PrefillTogether(std::span<const PrefillRows> rows, std::span<SampledToken> drawn) override {
    model_.PrefillTogether(rows, drawn);
  }
  void Score(const ScoreRows& rows, std::span<SampledToken> scores) override {
    model_.Score(rows, scores);
  }
  void Launch(std::span<const DecodeRow> rows) override {
    ++launched;
    for (const DecodeRow& row : rows) fed += row.token == kTokenInFlight;
    model_.Launch(rows);
  }
  void Collect(std::span<SampledToken* const> drawn) override {
    for (const SampledToken* const token : drawn) unread += token == nullptr;
    model_.Collect(drawn);
  }
  void Drop() noexcept override {
    ++dropped;
    model_.Drop();
  }

  int64_t launched = 0, fed = 0, unread = 0, dropped = 0;

 private:
  TokenModel& model_;
  TokenModelLimits limits_;
};

// Draws of all kinds, samples that share a prompt, a prompt that is scored, and stops.
std::vector<GenerationRequest> RequestsOf(const Config& config) {
  std::vector<GenerationRequest> requests;
  for (int64_t i = 0; i < 9; ++i) {
    GenerationRequest& request = requests.emplace_back();
    request.prompt = TokensOfSample(config, 7000 + i);
    request.prompt.resize(static_cast<size_t>(1 + i * 7 % 40));
    request.max_tokens = 5 + i * 5 % 33;
    request.sampling = {.temperature = i % 3 == 0 ? 0.0f : 1.1f,
                        .top_k = i % 2 == 0 ? 0 : 9,
                        .top_p = i % 4 == 1 ? 0.8f : 1,
                        .seed = static_cast<uint64_t>(i),
                        .top = static_cast<int32_t>(i % 4)};
    request.samples = i == 4 ? 4 : 1;
    request.score_prompt = i == 5;
    for (int32_t stop = 0; stop < i; ++stop) request.stop_tokens.push_back(3 * stop + 1);
  }
  return requests;
}

std::string TextOf(const std::vector<GeneratedAnswer>& answers) {
  std::string text;
  for (const GeneratedAnswer& answer : answers)
    for (const GeneratedSample& sample : answer.samples) {
      for (const SampledToken& token : sample.tokens) {
        text += fmt::format("{}:{:a}", token.token, token.logprob);
        for (const auto& [id, logprob] : token.top) text += fmt::format(",{}:{:a}", id, logprob);
        text += ' ';
      }
      text += fmt::format("{} {}\n", static_cast<int>(sample.finish), sample.stop_length);
    }
  return text;
}

// Twice, over the same caches and then over new weights.
void RequireSameAhead(const Trial& trial) {
  RunPlans(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed));
    EngineTokenModel engine_model(rank.engine, trial.config);
    const std::vector<GenerationRequest> requests = RequestsOf(trial.config);
    for (int64_t step = 0; step < 2; ++step) {
      StepOn(rank, trial.config, step);
      std::string texts[2];
      for (const bool ahead : {false, true}) {
        engine_model.Enter();
        LimitedModel model(engine_model, ahead);
        Generator generator(model);
        texts[ahead] = TextOf(GenerateAll(generator, requests));
        MR_CHECK((model.fed > 20) == ahead && (model.unread > 0) == ahead && model.launched > 20,
                 "{} steps, {} tokens in flight, {} rows behind a stop", model.launched, model.fed,
                 model.unread);
      }
      MR_CHECK(texts[0] == texts[1], "answers with steps ahead are others:\n{}\n{}", texts[0],
               texts[1]);
    }
  });
}

TEST_CASE("answers of steps launched ahead are those of steps read one by one") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama,
                            ModelConfig::Family::kQwen3, ModelConfig::Family::kNemotronH})
    RequireSameAhead(GeneratingTrial(family, Precision::kBf16));
}

TEST_CASE("they are with any way of execution, and on ranks that generate together") {
  Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kBf16);
  trial.config.execution.graph = GraphMode::kOff;
  RequireSameAhead(trial);
  trial.config.execution.checked = true;
  RequireSameAhead(trial);
  trial.config.execution.checked = false;
  trial.config.execution.graph = GraphMode::kStep;
  trial.adversary_seed = 3;
  RequireSameAhead(trial);
  trial.adversary_seed.reset();
  trial.world = 2;
  RequireSameAhead(trial);
  trial.config.parallel.tensor = 2;
  RequireSameAhead(trial);
}

// Of sequences of two tokens that begin at the same time; nothing is asked of what is drawn.
struct Rows {
  explicit Rows(EngineTokenModel& model, int64_t count) {
    const std::vector<int32_t> prompt = {1, 2};
    for (int64_t s = 0; s < count; ++s) {
      pages.push_back({});
      for (int64_t p = 0; p < 3; ++p) pages.back().push_back(static_cast<int32_t>(3 * s + p));
    }
    for (int64_t s = 0; s < count; ++s) {
      const std::vector<int32_t>& own = pages[static_cast<size_t>(s)];
      const SampledToken first = model.Prefill({s, prompt, 0, own, &kGreedy, {}});
      rows.push_back({s, 2, first.token, 1, own, &kGreedy});
    }
  }
  void Next(int32_t token) {
    for (DecodeRow& row : rows) ++row.length, ++row.drawn, row.token = token;
  }
  std::vector<std::vector<int32_t>> pages;
  std::vector<DecodeRow> rows;
};

TEST_CASE("what is no step ahead is refused, and dropping leaves nothing in flight") {
  Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kFp32);
  RunPlans(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(1);
    EngineTokenModel model(rank.engine, trial.config);
    MR_CHECK(!model.limits().steps_ahead, "a host device works while its caller waits");
    model.Enter();
    Rows of(model, 2);
    std::vector<SampledToken> sampled(2);
    std::vector<SampledToken*> drawn = {&sampled[0], &sampled[1]};
    const auto refused = [](const auto& f) {
      try {
        f();
      } catch (const Error&) {
        return true;
      }
      return false;
    };
    MR_CHECK(refused([&] { model.Collect(drawn); }), "no step is in flight");
    std::vector<DecodeRow> in_flight = of.rows;
    for (DecodeRow& row : in_flight) row.token = kTokenInFlight;
    MR_CHECK(refused([&] { model.Launch(in_flight); }), "no token is in flight");
    model.Launch({of.rows.data(), 1});
    of.Next(kTokenInFlight);
    MR_CHECK(refused([&] { model.Launch(of.rows); }), "the second slot has no row in flight");
    model.Launch({of.rows.data(), 1});
    of.Next(kTokenInFlight);
    MR_CHECK(refused([&] { model.Launch({of.rows.data(), 1}); }), "two steps are in flight");
    MR_CHECK(refused([&] { model.Collect(drawn); }), "the step has one row");
    model.Drop();
    MR_CHECK(refused([&] { model.Collect({drawn.data(), 1}); }), "steps were dropped");
    const int64_t next = rank.engine.LaunchInEra({.plan = DecodePlan(1)});
    MR_CHECK(refused([&] { rank.engine.CollectInEra(next - 1); }), "the engine's runs, too");
    rank.engine.CollectInEra(next);
    Rows again(model, 2);
    model.Decode(again.rows, sampled);
  });
}

TEST_CASE(
    "what a step drew is what is collected, though another plan has run since, or memory has "
    "gone") {
  Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kFp32);
  trial.releasable = true;
  RunPlans(trial, [&](RankContext& rank) {
    const auto drawn_by = [&](const std::function<void()>& between) {
      rank.engine.InitWeights(1);
      EngineTokenModel model(rank.engine, trial.config);
      model.Enter();
      Rows of(model, 6);
      std::vector<SampledToken> sampled(6);
      std::vector<SampledToken*> drawn;
      for (SampledToken& token : sampled) drawn.push_back(&token);
      model.Launch(of.rows);
      between();
      model.Collect(drawn);
      std::string text;
      for (const SampledToken& token : sampled) {
        text += fmt::format("{}:{:a}", token.token, token.logprob);
        for (const auto& [id, logprob] : token.top) text += fmt::format(",{}:{:a}", id, logprob);
        text += ' ';
      }
      return text;
    };
    const std::string alone = drawn_by([] {});
    const std::string beside = drawn_by([&] { StepOn(rank, trial.config, 0); });
    MR_CHECK(beside == alone, "{} was drawn, and {} behind a step of training", alone, beside);
    const std::string released = drawn_by([&] {
      rank.engine.Release(ArenaPart::kAll);
      rank.engine.Acquire();
    });
    MR_CHECK(released == alone, "{} was drawn, and {} behind a release", alone, released);
  });
}

TEST_CASE("pages that a refused call named are written with the next") {
  Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kFp32);
  RunPlans(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(1);
    EngineTokenModel model(rank.engine, trial.config);
    const std::vector<int32_t> prompt(20, 5), ahead = {0, 1, 2}, other = {7, 3, 9};
    const auto prefill = [&](const std::vector<int32_t>& pages) {
      return model.Prefill({0, prompt, 0, pages, &kGreedy, {}});
    };
    const auto decode = [&](const std::vector<int32_t>& pages, int32_t token) {
      const DecodeRow row{0, 20, token, 1, pages, &kGreedy};
      SampledToken drawn;
      model.Decode({&row, 1}, {&drawn, 1});
      return drawn.logprob;
    };
    model.Enter();
    const int32_t token = prefill(ahead).token;
    const float alone = decode(ahead, token);
    const std::vector<int32_t> filler(20, 9);
    model.Prefill({1, filler, 0, ahead, &kGreedy, {}});  // over its pages
    rank.engine.InitWeights(1);
    bool refused = false;
    try {
      prefill(other);
    } catch (const Error&) {
      refused = true;
    }
    MR_CHECK(refused, "weights were written, and no era has begun since");
    model.Enter();
    MR_CHECK_EQ(prefill(other).token, token, "the first token");
    model.Prefill({1, filler, 0, ahead, &kGreedy, {}});
    const float again = decode(other, token);
    MR_CHECK(again == alone, "{} was drawn, and {} in other pages", alone, again);
  });
}

// Seven positions to a page: two of a prompt, and five rows of which each but one is fed.
TEST_CASE("a prefix may be what was drawn in flight, and what is being written over is none") {
  Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kFp32);
  RunPlans(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(1);
    EngineTokenModel model(rank.engine, trial.config);
    model.Enter();
    Rows of(model, 1);
    std::vector<int32_t> tokens = {1, 2, of.rows[0].token};
    SampledToken sampled;
    SampledToken* const drawn = &sampled;
    model.Launch(of.rows);
    for (int i = 0; i < 4; ++i) {
      of.Next(kTokenInFlight);
      model.Launch(of.rows);
      model.Collect({&drawn, 1});
      tokens.push_back(sampled.token);
    }
    model.Collect({&drawn, 1});
    const std::vector<int32_t> behind = {of.pages[0][0], 9}, more = {3}, others = {12, 0, 13};
    const auto is_there = [&](std::span<const int32_t> prefix) {
      try {
        model.Prefill({1, more, 7, behind, &kGreedy, prefix});
      } catch (const Error&) {
        return false;
      }
      return true;
    };
    MR_CHECK(is_there(tokens), "what was drawn lies in the page");
    std::vector<int32_t> other_tokens = tokens;
    ++other_tokens.back();
    MR_CHECK(!is_there(other_tokens), "the last one drawn is another");
    MR_CHECK_EQ(of.pages[0][0], others[1], "the page that another sequence writes next");
    const std::vector<int32_t> prompt = {4, 4, 4, 4, 4, 4};
    model.Prefill({2, prompt, 0, others, &kGreedy, {}});
    DecodeRow row{2, 6, 8, 1, others, &kGreedy};
    model.Launch({&row, 1});
    ++row.length, ++row.drawn, row.token = kTokenInFlight;
    model.Launch({&row, 1});
    MR_CHECK(!is_there(tokens), "a row in flight writes over it");
    model.Drop();
    MR_CHECK(!is_there(tokens), "a row that was dropped wrote over it");
  });
}

// An embedding that is not a number makes all logits of one row so: a row that is fed what it drew
// (no token) is none, and leaves the others as they are.
TEST_CASE("logits that are not finite are an error of who waits for them, and of nobody else") {
  Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kFp32);
  RunPlans(trial, [&](RankContext& rank) {
    constexpr int32_t kBad = 9;
    rank.engine.InitWeights(1);
    std::vector<float> weights = rank.engine.ReadShard("master", FlatId{0});
    const auto row = weights.begin() + kBad * trial.config.model.d_model;
    std::fill_n(row, trial.config.model.d_model, std::numeric_limits<float>::quiet_NaN());
    rank.engine.WriteShard("master", FlatId{0}, weights);
    EngineTokenModel model(rank.engine, trial.config);
    const auto logprobs = [&](int32_t token, bool waits) {
      model.Enter();
      Rows of(model, 2);
      of.rows[0].token = token;
      SampledToken first, second;
      const std::vector<SampledToken*> drawn = {waits ? &first : nullptr, &second};
      std::vector<float> found;
      model.Launch(of.rows);
      for (int i = 0; i < 3; ++i) {
        of.Next(kTokenInFlight);
        model.Launch(of.rows);
        model.Collect(drawn);
        found.push_back(second.logprob);
      }
      model.Drop();
      return found;
    };
    const std::vector<float> expected = logprobs(3, true);
    MR_CHECK(logprobs(kBad, false) == expected, "the other row has drawn other tokens");
    ErrorCode code = ErrorCode::kInternal;
    try {
      logprobs(kBad, true);
    } catch (const Error& error) {
      code = error.code();
    }
    MR_CHECK(code == ErrorCode::kNonFinite, "{} of a row that is waited for", Name(code));
    MR_CHECK(logprobs(3, true) == expected, "behind an error other tokens are drawn");
  });
}

TEST_CASE("experts' ranks agree on each plan, and no step is ahead") {
  Trial trial = GeneratingTrial(ModelConfig::Family::kQwen3Moe, Precision::kFp32, 2);
  trial.config.model.ffn.reset();
  trial.config.model.moe = {.experts = 8, .top_k = 3, .ffn = 16};
  trial.config.inference.exact = false;
  trial.config.parallel.expert = 2;
  RunPlans(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(1);
    EngineTokenModel model(rank.engine, trial.config);
    model.Enter();
    Rows of(model, 1);
    model.Launch(of.rows);
    of.Next(kTokenInFlight);
    bool refused = false;
    try {
      model.Launch(of.rows);
    } catch (const Error&) {
      refused = true;
    }
    MR_CHECK(refused, "a step ahead of ranks along expert");
    SampledToken sampled;
    SampledToken* const drawn = &sampled;
    model.Collect({&drawn, 1});
    model.Finish();
  });
}

}  // namespace
}  // namespace millrace::test
