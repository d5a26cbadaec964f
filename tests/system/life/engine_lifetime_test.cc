// Engines share nothing: two at once in one process, many one after the other, each as if it were
// alone. Runs under the thread sanitizer, with every way of executing a step.
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/system/options.h"

namespace millrace::test {
namespace {

Trial Small(ModelConfig::Family family, int world) {
  Trial trial =
      MakeBase(family, family == ModelConfig::Family::kGpt2, Precision::kBf16All, world, 2).trial;
  trial.config.model.layers = 2;
  trial.steps = 2;
  return trial;
}

TEST_CASE("two runs of different models and worlds at once have the bits that each has alone") {
  const Trial a = Small(ModelConfig::Family::kGpt2, 2), b = Small(ModelConfig::Family::kLlama, 3);
  const std::string a_alone = RunTrial(a).Bits(), b_alone = RunTrial(b).Bits();
  REQUIRE(a_alone != b_alone);
  for (int round = 0; round < 3; ++round) {
    std::string a_bits, b_bits;
    {
      const std::jthread first([&] { a_bits = RunTrial(a).Bits(); }),
          second([&] { b_bits = RunTrial(b).Bits(); });
    }
    REQUIRE(a_bits == a_alone);
    REQUIRE(b_bits == b_alone);
  }
}

TEST_CASE("two engines of one rank, stepping in turn, do not see each other") {
  const Trial trial = Small(ModelConfig::Family::kGpt2, 1);
  const std::string alone = RunTrial(trial).Bits();
  std::vector<double> losses, other_losses;
  RunEngines(trial, [&](RankContext& a) {
    RunEngines(trial, [&](RankContext& b) {
      a.engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed));
      b.engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed) + 1);
      for (int64_t step = 0; step < trial.steps; ++step) {
        losses.push_back(StepOn(a, trial.config, step).loss);
        other_losses.push_back(StepOn(b, trial.config, step).loss);
      }
    });
  });
  const Outcome reference = RunTrial(trial);
  for (size_t step = 0; step < losses.size(); ++step)
    REQUIRE(losses[step] == reference.scalars[step].loss);
  REQUIRE(other_losses != losses);
}

TEST_CASE("a step's time lies within the host's wait for it, and steps in flight share none") {
  const Trial trial = Small(ModelConfig::Family::kGpt2, 1);
  RunEngines(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(1);
    const auto start = std::chrono::steady_clock::now();
    const auto since = [&] {
      return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
          .count();
    };
    double sum = 0;
    for (int64_t step = 0; step < 3; ++step) {
      StepOn(rank, trial.config, step);
      CHECK(rank.engine.step_ms() > 0);
      sum += rank.engine.step_ms();
    }
    for (int64_t step = 3; step < 3 + Engine::kStepsInFlight; ++step)
      rank.engine.Enqueue(BatchOf(trial.config, 1, 0, step), step, ValidTokens(trial.config, 1));
    for (int i = 0; i < Engine::kStepsInFlight; ++i) {
      rank.engine.Collect();
      CHECK(rank.engine.step_ms() > 0);
      sum += rank.engine.step_ms();
    }
    CHECK(sum <= since());
  });
}

TEST_CASE("twenty engines, made and destroyed one after the other") {
  const Trial trial = Small(ModelConfig::Family::kLlama, 2);
  const std::string first = RunTrial(trial).Bits();
  for (int i = 1; i < 20; ++i) REQUIRE(RunTrial(trial).Bits() == first);
}

TEST_CASE("every way of executing a step, on ranks as threads") {
  for (const int64_t replicate : {1, 2}) {
    Trial trial = Small(ModelConfig::Family::kGpt2, 4);
    trial.config.parallel.replicate = replicate;
    const std::string reference = RunTrial(trial).Bits();
    for (const auto graph : {ExecutionConfig::Graph::kMicrobatch, ExecutionConfig::Graph::kOff}) {
      trial.config.execution.graph = graph;
      REQUIRE(RunTrial(trial).Bits() == reference);
    }
    trial.sharing = CommSharing::kShared;
    REQUIRE(RunTrial(trial).Bits() == reference);
    trial.adversary_seed = 4;
    REQUIRE(RunTrial(trial).Bits() == reference);
    trial.adversary_seed.reset();
    trial.config.execution.checked = true;
    REQUIRE(RunTrial(trial).Bits() == reference);
  }
}

}  // namespace
}  // namespace millrace::test
