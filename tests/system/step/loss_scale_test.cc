// Gradients in fp16 are scaled: an overflow is a step that all ranks skip, bit for bit, and a
// smaller scale; updates in a row make it larger; the scale is all that such a step leaves behind.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/exec/logical_tensors.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

// Or one, on a machine with a single GPU.
int TwoRanks() { return std::min(2, TestRanks().MaxWorld()); }

Trial TrialOf(int world, int64_t accumulate, Precision precision) {
  Trial trial = MakeBase(ModelConfig::Family::kGpt2, true, precision, world, accumulate).trial;
  return trial;
}

struct Steps {
  std::vector<StepScalars> scalars;
  std::vector<std::string> hashes;  // behind each step; the state before step 0 first
};

// The steps from 0 on; all ranks must decide the same and have the same state.
Steps Run(
    const Trial& trial, int64_t steps,
    const std::function<Injection(int rank, int64_t step)>& inject = [](int, int64_t) {
      return Injection{};
    }) {
  std::vector<Steps> ranks(static_cast<size_t>(trial.world));
  RunEngines(trial, [&](RankContext& rank) {
    Steps& mine = ranks[static_cast<size_t>(rank.rank)];
    rank.engine.InitWeights(7);
    const auto hash = [&] {
      mine.hashes.push_back(ParamHash(rank.engine) + " " + OptimizerHash(rank.engine));
    };
    hash();
    for (int64_t step = 0; step < steps; ++step) {
      mine.scalars.push_back(StepOn(rank, trial.config, step, inject(rank.rank, step)));
      hash();
    }
  });
  for (const Steps& other : ranks) {
    MR_CHECK(other.hashes == ranks[0].hashes, "ranks have different states");
    for (size_t s = 0; s < other.scalars.size(); ++s) {
      const StepScalars &a = other.scalars[s], &b = ranks[0].scalars[s];
      MR_CHECK(a.applied == b.applied && a.scaled_down == b.scaled_down &&
                   a.loss_scale == b.loss_scale && a.next_loss_scale == b.next_loss_scale &&
                   a.clean_steps == b.clean_steps && a.scale_downs == b.scale_downs &&
                   a.offender_unit == b.offender_unit && a.offender_rank == b.offender_rank,
               "ranks disagree about step {}", s);
    }
  }
  return ranks[0];
}

// What each step should have done with the scale, written out apart.
void CheckScales(const Steps& run, const LossScaleConfig& config) {
  double scale = config.init_scale;
  int64_t clean = 0, downs = 0, updates = 0;
  for (size_t s = 0; s < run.scalars.size(); ++s) {
    const StepScalars& step = run.scalars[s];
    CAPTURE(s, step.loss_scale);
    REQUIRE(step.loss_scale == scale);
    REQUIRE(std::isfinite(step.loss));
    REQUIRE(step.applied != step.scaled_down);
    REQUIRE((run.hashes[s + 1] == run.hashes[s]) == (step.applied == 0));
    if (step.applied != 0) {
      ++updates, ++clean;
      if (clean == config.growth_interval) scale *= config.growth_factor, clean = 0;
    } else {
      ++downs, clean = 0, scale *= config.backoff_factor;
    }
    REQUIRE(step.next_loss_scale == scale);
    REQUIRE(step.clean_steps == clean);
    REQUIRE(step.scale_downs == downs);
    REQUIRE(step.skipped == downs);
    REQUIRE(step.adam_t == updates);
  }
}

std::string Decisions(const Steps& run) {
  std::string text;
  for (const StepScalars& step : run.scalars)
    text += fmt::format("{}{} ", step.loss_scale, step.applied != 0 ? "" : " down");
  return text;
}

TEST_CASE("a scale that is too large falls until gradients are finite, and then comes back") {
  const Precision precision = GENERATE(Precision::kFp16, Precision::kFp16All);
  std::vector<std::string> decisions;
  for (const auto& [world, accumulate] : {std::pair{1, 2}, {2, 1}}) {
    if (!HaveDevices(world)) continue;
    CAPTURE(world);
    Trial trial = TrialOf(world, accumulate, precision);
    LossScaleConfig& config = trial.config.precision.loss_scale;
    config = {.init_scale = 0x1p26, .growth_factor = 4, .growth_interval = 3};
    const Steps run = Run(trial, 22);
    CheckScales(run, config);
    REQUIRE(run.scalars.front().scaled_down == 1);
    REQUIRE(run.scalars.back().adam_t >= 6);  // it has grown at least once,
    bool again = false;                       // and too far
    for (size_t s = 1; s < run.scalars.size(); ++s)
      again |= run.scalars[s].scaled_down == 1 && run.scalars[s - 1].applied == 1;
    REQUIRE(again);
    decisions.push_back(Decisions(run));
  }
  // One batch, by one rank or two: of the same gradients, but for their sums.
  CHECK(decisions.front() == decisions.back());
}

// Step 1 has a gradient that is not finite on one rank alone. What it leaves is the scale: the
// others are the steps of a run that has not had it, at the scales that this one has.
TEST_CASE("an overflow on one rank is skipped by all, and only the scale knows of it") {
  using Sync = ShardingConfig::GradSync;
  for (const auto& [world, replicate] : {std::pair{1, 1}, {2, 1}, {2, 2}, {3, 1}, {4, 2}})
    for (const Sync sync : {Sync::kEvery, Sync::kLast}) {
      if (!HaveDevices(world)) continue;
      Trial trial = TrialOf(world, 2, Precision::kFp16All);
      trial.config.parallel.replicate = replicate;
      trial.config.sharding.grad_sync = sync;
      trial.config.precision.loss_scale.init_scale = 4096;
      const int bad_rank = world - 1;
      CAPTURE(world, replicate);
      const Steps run = Run(trial, 4, [&](int rank, int64_t step) {
        return Injection{.loss_nan = false, .grad_unit = step == 1 && rank == bad_rank ? 2 : -1};
      });
      CheckScales(run, trial.config.precision.loss_scale);
      REQUIRE(run.scalars[0].applied == 1);
      REQUIRE(run.scalars[1].scaled_down == 1);
      REQUIRE(run.scalars[1].offender_unit == 2);
      REQUIRE(run.scalars[1].offender_rank == bad_rank);
      REQUIRE(run.scalars[3].loss_scale == 2048);

      std::string expected;
      RunEngines(trial, [&](RankContext& rank) {
        rank.engine.InitWeights(7);
        StepScalars scalars = StepOn(rank, trial.config, 0);
        scalars.next_loss_scale = 2048;
        rank.engine.WriteScalars(scalars);
        for (const int64_t step : {2, 3}) StepOn(rank, trial.config, step);
        const std::string hash = ParamHash(rank.engine) + " " + OptimizerHash(rank.engine);
        if (rank.rank == 0) expected = hash;
      });
      CHECK(run.hashes.back() == expected);
    }
}

TEST_CASE("a loss that is not finite, and gradients at the least scale, are no overflows") {
  const int world = TwoRanks();
  Trial trial = TrialOf(world, 1, Precision::kFp16);
  trial.config.precision.loss_scale.init_scale = 2;
  const Steps run = Run(trial, 4, [&](int rank, int64_t step) {
    return Injection{.loss_nan = step == 1 && rank == world - 1,
                     .grad_unit = step >= 2 && rank == 0 ? 1 : -1};
  });
  const StepScalars &loss = run.scalars[1], &down = run.scalars[2], &least = run.scalars[3];
  CHECK((loss.applied == 0 && loss.scaled_down == 0 && loss.next_loss_scale == 2));
  CHECK((down.applied == 0 && down.scaled_down == 1 && down.next_loss_scale == 1));
  CHECK((least.applied == 0 && least.scaled_down == 0 && least.next_loss_scale == 1));
  CHECK(least.scale_downs == 1);
  CHECK(least.skipped == 3);
  CHECK(run.hashes[4] == run.hashes[1]);
}

// Powers of two change no rounding of numbers that stay normal, and what is not normal is small
// beside the rest: what is reported and what the update sees are not scaled.
TEST_CASE("norm, clipping and moments are of gradients that are not scaled") {
  Trial trial = TrialOf(TwoRanks(), 1, Precision::kFp16);
  trial.config.optimizer.clip = 1e-3;  // far below the norm
  trial.steps = 1;
  const Outcome small = [&] {
    trial.config.precision.loss_scale.init_scale = 256;
    return RunTrial(trial);
  }();
  trial.config.precision.loss_scale.init_scale = 4096;
  const Outcome large = RunTrial(trial);
  const StepScalars &a = small.scalars[0], &b = large.scalars[0];
  REQUIRE((a.applied == 1 && b.applied == 1));
  CHECK(a.loss == b.loss);
  CHECK(a.grad_norm == Approx(b.grad_norm).epsilon(1e-4));
  CHECK(a.clip_scale * a.grad_norm == Approx(1e-3 / 256).epsilon(1e-12));
  CHECK(b.clip_scale * b.grad_norm == Approx(1e-3 / 4096).epsilon(1e-12));
  Trial wide = trial;
  wide.config.precision.compute = PrecisionConfig::Format::kFp32;
  CHECK(a.grad_norm == Approx(RunTrial(wide).scalars[0].grad_norm).epsilon(0.01));
}

TEST_CASE("an overflow is the same by every executor") {
  using Graph = ExecutionConfig::Graph;
  Trial trial = TrialOf(TwoRanks(), 3, Precision::kFp16All);
  trial.config.precision.loss_scale = {.init_scale = 0x1p24, .growth_interval = 2};
  const Steps reference = Run(trial, 12);
  REQUIRE(reference.scalars.back().scale_downs > 0);
  REQUIRE(reference.scalars.back().adam_t > 2);
  for (const Graph graph : {Graph::kMicrobatch, Graph::kOff}) {
    trial.config.execution.graph = graph;
    CHECK(Run(trial, 12).hashes == reference.hashes);
  }
  if (TestRanks().captures()) return;  // a device has an order of its own
  trial.adversary_seed = 11;
  CHECK(Run(trial, 12).hashes == reference.hashes);
}

}  // namespace
}  // namespace millrace::test
