// Evaluation and generation share the arena and the weights with training: they may come between
// any two steps, change no bit of the run, and give the same values wherever and however they run.
#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "runtime/exec/logical_tensors.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

struct Mixed {
  Outcome outcome;
  std::vector<double> losses;  // held-out sums of all ranks, in the order they were asked for
  std::vector<std::vector<float>> logits;
};

std::vector<int32_t> HeldOut(const Config& config, int64_t index, int world, int rank) {
  std::vector<int32_t> tokens;
  for (int64_t b = 0; b < config.train.micro_batch; ++b) {
    const std::vector<int32_t> row =
        TokensOfSample(config, 5000 + (index * world + rank) * config.train.micro_batch + b);
    tokens.insert(tokens.end(), row.begin(), row.end());
  }
  return tokens;
}

// Between steps: nothing, an evaluation, a token, both, or the same evaluation twice.
Mixed RunMixed(Trial trial) {
  trial.all_plans = true;
  Mixed mixed;
  mixed.losses.resize(static_cast<size_t>(trial.world));
  std::vector<std::vector<double>> losses(static_cast<size_t>(trial.world));
  std::vector<std::vector<std::vector<float>>> logits(static_cast<size_t>(trial.world));
  RunEngines(trial, [&](RankContext& rank) {
    const auto r = static_cast<size_t>(rank.rank);
    const auto evaluate = [&](int64_t i) {
      losses[r].push_back(rank.engine.EvalLossSum(HeldOut(trial.config, i, rank.world, rank.rank)));
    };
    const auto generate = [&](int64_t i) {
      const std::vector<int32_t> tokens = TokensOfSample(trial.config, 9000 + i);
      logits[r].push_back(rank.engine.Logits(std::span(tokens).first(tokens.size() - 1),
                                             i % trial.config.model.seq_len,
                                             trial.config.model.Vocab()));
    };
    rank.engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed));
    evaluate(0);
    for (int64_t step = 0; step < trial.steps; ++step) {
      const StepScalars scalars = StepOn(rank, trial.config, step);
      if (rank.rank == 0) mixed.outcome.scalars.push_back(scalars);
      if (step % 4 == 1) evaluate(step);
      if (step % 4 >= 2) generate(step);
      if (step % 4 == 3) {
        evaluate(step);
        evaluate(step);
        MR_CHECK(losses[r].back() == losses[r][losses[r].size() - 2], "the same evaluation twice");
      }
    }
    const std::string params = ParamHash(rank.engine), optimizer = OptimizerHash(rank.engine);
    if (rank.rank == 0) {
      mixed.outcome.param_hash = params;
      mixed.outcome.optimizer_hash = optimizer;
      mixed.outcome.counters = {rank.engine.counters()};
    }
  });
  mixed.losses.assign(losses[0].size(), 0);
  for (const auto& of_rank : losses)
    for (size_t i = 0; i < of_rank.size(); ++i) mixed.losses[i] += of_rank[i];
  for (const auto& of_rank : logits) MR_CHECK(of_rank == logits[0], "ranks have different logits");
  mixed.logits = logits[0];
  return mixed;
}

TEST_CASE("evaluation and generation between steps change no bit and no counter of the run") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const auto precision : {Precision::kFp32, Precision::kBf16All})
      for (const auto& [world, replicate] : {std::pair{1, 1}, {2, 1}, {3, 1}, {4, 2}}) {
        Trial trial =
            MakeBase(family, family == ModelConfig::Family::kGpt2, precision, world, 2).trial;
        trial.config.parallel.replicate = replicate;
        trial.steps = 8;
        const Outcome alone = RunTrial(trial);
        const Mixed base = RunMixed(trial);
        INFO("world " << world << " replicate " << replicate);
        REQUIRE(base.outcome.Bits() == alone.Bits());
        REQUIRE(base.outcome.counters[0] == alone.counters[0]);
        for (const Option& option : BitwiseOptions()) {
          INFO(option.name);
          Trial other = trial;
          option.set(other);
          if (!Valid(other)) continue;
          const Mixed mixed = RunMixed(other);
          REQUIRE(mixed.outcome.Bits() == alone.Bits());
          REQUIRE(mixed.losses == base.losses);
          REQUIRE(mixed.logits == base.logits);
        }
      }
}

TEST_CASE("so they do where weights are gathered in FP8, with the bits of those that are not") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const auto& [world, replicate] : {std::pair{1, 1}, {2, 1}, {4, 2}}) {
      Trial trial =
          MakeBase(family, family == ModelConfig::Family::kGpt2, Precision::kBf16, world, 2).trial;
      trial.config.parallel.replicate = replicate;
      trial.config.precision.linear = LinearEncoding::kFp8Block;
      trial.steps = 8;
      const Mixed wide = RunMixed(trial);
      trial.config.precision.gather = WeightGather::kLinear;
      const Outcome alone = RunTrial(trial);
      const Mixed narrow = RunMixed(trial);
      INFO("world " << world << " replicate " << replicate);
      REQUIRE(narrow.outcome.Bits() == alone.Bits());
      REQUIRE(narrow.outcome.counters[0] == alone.counters[0]);
      REQUIRE(narrow.outcome.Bits() == wide.outcome.Bits());
      REQUIRE(narrow.losses == wide.losses);
      REQUIRE(narrow.logits == wide.logits);
    }
}

TEST_CASE("evaluation and generation see the weights of the last step, in any world") {
  Trial trial = MakeBase(ModelConfig::Family::kGpt2, true, Precision::kFp32, 1, 1).trial;
  trial.config.train.micro_batch = 6;
  trial.config.optimizer.eps = 1e-3;
  trial.steps = 8;
  const Mixed one = RunMixed(trial);
  REQUIRE(one.losses.back() != one.losses.front());
  for (const int world : {2, 3}) {
    Trial other = trial;
    other.world = world;
    other.config.train.micro_batch = 6 / world;
    const Mixed mixed = RunMixed(other);
    for (size_t i = 0; i < one.losses.size(); ++i)
      REQUIRE(mixed.losses[i] == Approx(one.losses[i]).epsilon(1e-4));
    for (size_t i = 0; i < one.logits.size(); ++i)
      for (size_t v = 0; v < one.logits[i].size(); ++v)
        REQUIRE(mixed.logits[i][v] == Approx(one.logits[i][v]).epsilon(1e-3).margin(1e-3));
  }
}

TEST_CASE("weights written from outside are what the next step, evaluation and token use") {
  Trial trial = MakeBase(ModelConfig::Family::kLlama, false, Precision::kBf16, 2, 1).trial;
  trial.all_plans = true;
  for (const bool fp8 : {false, true})
    for (const auto downcast :
         {ShardingConfig::Downcast::kAfterUpdate, ShardingConfig::Downcast::kPerGather}) {
      trial.config.sharding.downcast = downcast;
      trial.config.precision.linear = fp8 ? LinearEncoding::kFp8Tensor : LinearEncoding::kCompute;
      trial.config.precision.gather = fp8 ? WeightGather::kLinear : WeightGather::kCompute;
      // In fp32 nothing but what is gathered in FP8 is made of masters: no other state asks for the
      // prologue.
      trial.config.precision.compute =
          fp8 ? PrecisionConfig::Format::kFp32 : PrecisionConfig::Format::kBf16;
      if (!Valid(trial)) continue;
      std::vector<double> fresh(2), again(2), evaluated_fresh(2), evaluated_again(2);
      RunEngines(trial, [&](RankContext& rank) {
        const auto r = static_cast<size_t>(rank.rank);
        rank.engine.InitWeights(1);  // before any step, of which a state could be left
        evaluated_fresh[r] = rank.engine.EvalLossSum(HeldOut(trial.config, 0, 2, rank.rank));
        fresh[r] = StepOn(rank, trial.config, 0).loss;
        rank.engine.InitWeights(2);
        StepOn(rank, trial.config, 0);
        rank.engine.InitWeights(1);  // after a step, whose carried gathers hold the other weights
        again[r] = StepOn(rank, trial.config, 0).loss;
        rank.engine.InitWeights(2);
        rank.engine.EvalLossSum(HeldOut(trial.config, 0, 2, rank.rank));
        rank.engine.InitWeights(1);
        evaluated_again[r] = rank.engine.EvalLossSum(HeldOut(trial.config, 0, 2, rank.rank));
      });
      REQUIRE(again == fresh);
      REQUIRE(evaluated_again == evaluated_fresh);
    }
}

}  // namespace
}  // namespace millrace::test
