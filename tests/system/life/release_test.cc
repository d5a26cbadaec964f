// Memory of the arena goes and comes between steps and answers, and changes no bit of either. Also
// on GPUs (release_cuda_test), where what is launched behind it are graphs.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>

#include "runtime/base/error.h"
#include "runtime/exec/agreement/order_log.h"
#include "tests/system/generate/cached_sequences.h"

namespace millrace::test {
namespace {

// Called between steps and answers.
using Between = std::function<void(Engine& engine)>;

// What a prompt is answered with: tokens and log-probabilities.
std::string AnswerBits(EngineTokenModel& model, int64_t seed) {
  const std::vector<int32_t> prompt = {5, static_cast<int32_t>(seed), 17, 2, 40}, pages = {3, 1};
  const Sampling sampling{.temperature = 0.7f, .seed = static_cast<uint64_t>(seed)};
  model.Enter();
  SampledToken token =
      model.Prefill({.slot = 2, .tokens = prompt, .pages = pages, .sampling = &sampling});
  std::string text = fmt::format("{} {:a}\n", token.token, token.logprob);
  for (int64_t drawn = 1; drawn < 5; ++drawn) {
    const DecodeRow row{.slot = 2,
                        .length = std::ssize(prompt) + drawn - 1,
                        .token = token.token,
                        .drawn = drawn,
                        .pages = pages,
                        .sampling = &sampling};
    model.Decode({&row, 1}, {&token, 1});
    text += fmt::format("{} {:a}\n", token.token, token.logprob);
  }
  return text;
}

// By rank: losses, answers and weights of a few steps and eras.
std::string BitsOf(const Trial& trial, const Between& between) {
  std::vector<std::string> by_rank(static_cast<size_t>(trial.world));
  RunPlans(trial, [&](RankContext& rank) {
    std::string& text = by_rank[static_cast<size_t>(rank.rank)];
    Engine& engine = rank.engine;
    engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed));
    EngineTokenModel model(engine, trial.config);
    for (int64_t step = 0; step < 6; ++step) {
      const StepScalars s = StepOn(rank, trial.config, step);
      text += fmt::format("{:a} {:a} {}\n", s.loss, s.grad_norm, s.adam_t);
      if (step % 2 == 0) between(engine);
      text += AnswerBits(model, step);
      between(engine);
      // Of the era that was, or of a new one.
      text += AnswerBits(model, step + 20);
    }
    const std::vector<int32_t> held_out = BatchOf(trial.config, rank.world, rank.rank, 77);
    const auto micro =
        static_cast<size_t>(trial.config.train.micro_batch * (trial.config.model.seq_len + 1));
    between(engine);
    text += fmt::format("{:a}\n", engine.EvalLossSum(std::span(held_out).first(micro)));
    for (size_t f = 0; f < engine.layout().flats.size(); ++f)
      for (const float value : engine.ReadShard("master", FlatId{static_cast<int32_t>(f)}))
        text += fmt::format("{:a} ", value);
  });
  std::string all;
  for (const std::string& text : by_rank) all += text + "\n";
  return all;
}

// The first line in which two differ, so that a failure can be read.
std::string FirstDifference(const std::string& a, const std::string& b) {
  if (a == b) return "";
  const size_t at = static_cast<size_t>(
      std::mismatch(a.begin(),
                    a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())),
                    b.begin())
          .first -
      a.begin());
  const size_t from = at < 40 ? 0 : at - 40;
  return fmt::format("at {}: {} / {}", at, a.substr(from, 80), b.substr(from, 80));
}

void RequireSameBits(const Trial& trial) {
  Trial releasable = trial;
  releasable.releasable = true;
  const std::string plain = BitsOf(trial, [](Engine&) {});
  for (const ArenaPart part : kArenaParts) {
    int64_t bytes = 0;
    const std::string released = BitsOf(releasable, [&](Engine& engine) {
      const int64_t gone = engine.Release(part).bytes, back = engine.Acquire().bytes;
      MR_CHECK_EQ(gone, back, "bytes that went and came");
      if (engine.comms().world().rank() == 0) bytes = gone;
    });
    INFO(Name(part) << ": " << bytes << " bytes");
    REQUIRE(FirstDifference(plain, released) == "");
    // Of a tiny model's arena a GPU's pages may leave no other part.
    if (part == ArenaPart::kAll || (part == ArenaPart::kEra && !TestRanks().captures()))
      REQUIRE(bytes > 0);
  }
}

TEST_CASE("steps and answers have the same bits with memory released between them",
          "[release][world1]") {
  for (const auto family :
       {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama, ModelConfig::Family::kNemotronH}) {
    Trial trial = GeneratingTrial(family, Precision::kBf16);
    trial.config.sharding.downcast = ShardingConfig::Downcast::kAfterUpdate;
    RequireSameBits(trial);
  }
  Trial gathers = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kBf16);
  gathers.config.sharding.downcast = ShardingConfig::Downcast::kPerGather;
  RequireSameBits(gathers);
}

TEST_CASE("so they have where weights are gathered in FP8, between steps, eras and evaluation",
          "[release][ranks]") {
  if (TestRanks().captures()) return;  // GPUs keep no caches in FP8
  for (const int world : {1, 2}) {
    Trial trial = GeneratingTrial(ModelConfig::Family::kGpt2, Precision::kBf16, world);
    trial.config.sharding.downcast = ShardingConfig::Downcast::kAfterUpdate;
    trial.config.precision.linear = LinearEncoding::kFp8Block;
    const std::string wide = BitsOf(trial, [](Engine&) {});
    trial.config.precision.gather = WeightGather::kLinear;
    REQUIRE(FirstDifference(wide, BitsOf(trial, [](Engine&) {})) == "");
    RequireSameBits(trial);
  }
}

TEST_CASE("however they are executed", "[release][world1]") {
  Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kBf16);
  trial.config.sharding.downcast = ShardingConfig::Downcast::kAfterUpdate;
  trial.config.execution.graph = GraphMode::kOff;
  RequireSameBits(trial);
  trial.config.execution.graph = GraphMode::kMicrobatch;
  RequireSameBits(trial);
  trial.config.execution.checked = true;
  RequireSameBits(trial);
}

TEST_CASE("on several ranks, too", "[release][ranks]") {
  Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kBf16, 2);
  trial.config.sharding.downcast = ShardingConfig::Downcast::kAfterUpdate;
  if (!HaveDevices(trial.world)) return;
  if (TestRanks().captures()) {  // GPUs that know each other's memory
    trial.releasable = true;
    std::string refused;
    RunPlans(trial, [&](RankContext& rank) {
      if (rank.rank == 0) refused = rank.engine.WhyNotReleasable();
    });
    REQUIRE_THAT(refused, Catch::Contains("allowed is a run of one GPU"));
    return;
  }
  RequireSameBits(trial);
}

}  // namespace
}  // namespace millrace::test
