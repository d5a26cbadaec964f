// Samples that share their prompt's prefix draw what as many requests of one sample each draw, bit
// for bit, log-probabilities included.
#include <catch2/catch.hpp>
#include <cmath>
#include <mutex>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/infer/generate_all.h"
#include "tests/system/generate/cached_sequences.h"

namespace millrace::test {
namespace {

// Of one data rank's prompts, with so many tokens each.
std::vector<GenerationRequest> RequestsOf(int data_rank, const std::vector<int64_t>& prompts) {
  std::vector<GenerationRequest> requests;
  for (const int64_t length : prompts) {
    GenerationRequest& request = requests.emplace_back();
    for (int64_t t = 0; t < length; ++t)
      request.prompt.push_back(static_cast<int32_t>((t * t + 3 * length + 5 * data_rank) % 61));
    request.max_tokens = 9;
    request.sampling = {.top_p = 0.95f, .seed = static_cast<uint64_t>(length), .top = 2};
    request.stop_tokens = {7};
    request.samples = 4;
  }
  return requests;
}

// The same samples, each a request of its own.
std::vector<GenerationRequest> Apart(const std::vector<GenerationRequest>& requests) {
  std::vector<GenerationRequest> apart;
  for (const GenerationRequest& request : requests)
    for (int64_t sample = 0; sample < request.samples; ++sample) {
      GenerationRequest& one = apart.emplace_back(request);
      one.samples = 1;
      one.sampling.seed = SeedOfSample(request.sampling.seed, sample);
    }
  return apart;
}

struct Drawn {
  std::vector<std::vector<SampledToken>> samples;
  Generator::PromptTokens prompts;
};

Drawn Draw(EngineTokenModel& model, const std::vector<GenerationRequest>& requests) {
  Drawn drawn;
  model.Enter();
  Generator generator(model, PromptsFirst(model.limits()));
  for (GeneratedAnswer& answer : GenerateAll(generator, requests)) {
    MR_CHECK(!answer.refusal, "{}", answer.refusal->message);
    for (GeneratedSample& sample : answer.samples)
      drawn.samples.push_back(std::move(sample.tokens));
  }
  model.Finish();
  MR_CHECK_EQ(generator.load().free_pages, model.limits().pages, "free pages at the end");
  drawn.prompts = generator.prompt_tokens();
  return drawn;
}

// Where a row's bits depend on the rows beside it, log-probabilities differ by rounding.
void RequireSame(const Drawn& a, const Drawn& b, bool exact) {
  MR_CHECK_EQ(a.samples.size(), b.samples.size(), "samples");
  for (size_t s = 0; s < a.samples.size(); ++s) {
    MR_CHECK_EQ(a.samples[s].size(), b.samples[s].size(), "tokens of sample {}", s);
    for (size_t t = 0; t < a.samples[s].size(); ++t) {
      const SampledToken &x = a.samples[s][t], &y = b.samples[s][t];
      const bool same = exact ? x.logprob == y.logprob && x.top == y.top
                              : std::abs(x.logprob - y.logprob) < 1e-5f;
      MR_CHECK(x.token == y.token && same, "token {} of sample {}: {} ({}) and {} ({})", t, s,
               x.token, x.logprob, y.token, y.logprob);
    }
  }
}

// Positions of the prompts that three of four samples find cached, on each rank.
void RequireShared(const Trial& trial, int64_t shared, bool exact = true,
                   const std::vector<int64_t>& prompts = {48, 61, 5}) {
  RunPlans(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed));
    EngineTokenModel model(rank.engine, trial.config);
    for (int64_t step = 0; step < 2; ++step) {  // weights change in between
      StepOn(rank, trial.config, step);
      const auto requests = RequestsOf(rank.run.layout.mesh.Index(rank.rank, kDataAxes), prompts);
      const Drawn together = Draw(model, requests), apart = Draw(model, Apart(requests));
      RequireSame(together, apart, exact);
      MR_CHECK_EQ(together.prompts.shared, 3 * shared, "tokens that samples share");
      MR_CHECK_EQ(apart.prompts.shared, 0, "tokens that requests share");
      MR_CHECK_EQ(together.prompts.computed + together.prompts.shared, apart.prompts.computed,
                  "tokens of prompts");
    }
  });
}

constexpr ModelConfig::Family kDense[] = {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama,
                                          ModelConfig::Family::kQwen3};

TEST_CASE("samples that share full pages have the bits of requests apart") {
  for (const auto family : kDense)
    for (const auto precision : {Precision::kFp32, Precision::kBf16}) {
      CAPTURE(static_cast<int>(family), static_cast<int>(precision));
      Trial trial = GeneratingTrial(family, precision);  // pages of 7
      CHECK_NOTHROW(RequireShared(trial, 42 + 56));
      trial.config.inference.slots = 3;  // later samples begin when the first are over
      CHECK_NOTHROW(RequireShared(trial, 42 + 56));
      trial.config.inference.page_tokens = 16;
      trial.config.inference.pages = 7;  // alone 4 or 5: without sharing one sequence at a time
      CHECK_NOTHROW(RequireShared(trial, 32 + 48));
    }
  Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kBf16);
  trial.config.model.attention.window = 9;
  CHECK_NOTHROW(RequireShared(trial, 42 + 56));
  trial.config.inference.page_tokens = 1;
  CHECK_NOTHROW(RequireShared(trial, 47 + 60 + 4));
  trial.config.precision.linear = LinearEncoding::kFp8Block;
  CHECK_NOTHROW(RequireShared(trial, 47 + 60 + 4));
}

TEST_CASE("rests of several samples in one call have the bits of requests apart") {
  Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kBf16);
  trial.config.inference.slots = 12;
  trial.config.inference.decode = std::vector<int64_t>{4, 12};  // rests of 6 and 5: two at once
  CHECK_NOTHROW(RequireShared(trial, 42 + 56));
  trial.config.inference.page_tokens = 4;  // 4, 1 and 1: three at once, and of all prompts
  CHECK_NOTHROW(RequireShared(trial, 44 + 60 + 4));
  trial.config.model.attention.window = 5;
  CHECK_NOTHROW(RequireShared(trial, 44 + 60 + 4));
}

TEST_CASE("where the rows beside a row decide its bits, samples share pages all the same") {
  Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kFp32);
  trial.config.inference.exact = false;
  CHECK_NOTHROW(RequireShared(trial, 42 + 56, false));
  trial.config.inference.slots = 12;
  trial.config.inference.decode = std::vector<int64_t>{4, 12};
  CHECK_NOTHROW(RequireShared(trial, 42 + 56, false));
  trial = GeneratingTrial(ModelConfig::Family::kQwen3Moe, Precision::kFp32);
  trial.config.model.ffn.reset();
  trial.config.model.moe = {.experts = 8, .top_k = 3, .ffn = 16};
  CHECK_NOTHROW(RequireShared(trial, 42 + 56, false));
}

TEST_CASE("mixers' states are not shared") {
  CHECK_NOTHROW(
      RequireShared(GeneratingTrial(ModelConfig::Family::kNemotronH, Precision::kFp32), 0));
}

TEST_CASE("ranks that generate together share alike, and those on their own share their own") {
  for (const auto precision : {Precision::kFp32, Precision::kBf16}) {
    Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, precision, 4);
    trial.config.parallel.tensor = 2;  // and two along shard
    CHECK_NOTHROW(RequireShared(trial, 42 + 56));
  }
}

}  // namespace
}  // namespace millrace::test
