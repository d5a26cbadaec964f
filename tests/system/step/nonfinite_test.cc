// A non-finite loss or gradient on one rank makes the update a no-op on all of them, bit for bit;
// the culprit is named; the next step goes on as if the bad one had not been.
#include <catch2/catch.hpp>
#include <cmath>
#include <mutex>

#include "runtime/base/error.h"
#include "runtime/exec/logical_tensors.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

struct Fault {
  int rank = 0;
  Injection injection;
};

struct FaultyRun {
  std::vector<StepScalars> scalars;  // by step
  std::vector<std::string> hashes;   // after each step, the state before step 0 first
};

// Steps 0, 1, ..., with `fault` in step 1. All ranks must see the same scalars and state.
FaultyRun RunWithFault(const Trial& trial, const Fault& fault) {
  std::vector<FaultyRun> ranks(static_cast<size_t>(trial.world));
  RunEngines(trial, [&](RankContext& rank) {
    FaultyRun& mine = ranks[static_cast<size_t>(rank.rank)];
    rank.engine.InitWeights(7);
    const auto hash = [&] {
      mine.hashes.push_back(ParamHash(rank.engine) + " " + OptimizerHash(rank.engine));
    };
    hash();
    for (int64_t step = 0; step < 4; ++step) {
      const bool here = step == 1 && rank.rank == fault.rank;
      mine.scalars.push_back(
          StepOn(rank, trial.config, step, here ? fault.injection : Injection{}));
      hash();
    }
  });
  for (const FaultyRun& other : ranks) {
    MR_CHECK(other.hashes == ranks[0].hashes, "ranks end with different states");
    for (size_t s = 0; s < other.scalars.size(); ++s)
      MR_CHECK(other.scalars[s].applied == ranks[0].scalars[s].applied &&
                   other.scalars[s].offender_unit == ranks[0].scalars[s].offender_unit &&
                   other.scalars[s].offender_rank == ranks[0].scalars[s].offender_rank &&
                   other.scalars[s].adam_t == ranks[0].scalars[s].adam_t,
               "ranks disagree about step {}", s);
  }
  return ranks[0];
}

void CheckSkipped(const Trial& trial, const Fault& fault) {
  const FaultyRun run = RunWithFault(trial, fault);
  const StepScalars& bad = run.scalars[1];
  REQUIRE(bad.applied == 0);
  REQUIRE(bad.offender_rank == fault.rank);
  REQUIRE(bad.offender_unit == fault.injection.grad_unit);  // -1: the loss
  REQUIRE(std::isnan(bad.loss) == fault.injection.loss_nan);
  REQUIRE(run.hashes[1] != run.hashes[0]);
  REQUIRE(run.hashes[2] == run.hashes[1]);  // nothing moved
  REQUIRE(run.hashes[3] != run.hashes[2]);
  const std::vector<int64_t> adam_t = {run.scalars[0].adam_t, run.scalars[1].adam_t,
                                       run.scalars[2].adam_t, run.scalars[3].adam_t};
  REQUIRE(adam_t == std::vector<int64_t>{1, 1, 2, 3});
  REQUIRE(run.scalars[3].skipped == 1);
  REQUIRE(run.scalars[2].applied == 1);
  REQUIRE(run.scalars[2].offender_unit == -2);
  REQUIRE(run.scalars[2].offender_rank == -1);

  // The later steps are those of a run that never saw batch 1: the schedule goes by
  // the step, Adam by its own t.
  std::vector<std::string> expected(1);
  Trial alone = trial;
  RunEngines(alone, [&](RankContext& rank) {
    rank.engine.InitWeights(7);
    for (const int64_t step : {0, 2, 3}) StepOn(rank, trial.config, step);
    const std::string hash = ParamHash(rank.engine) + " " + OptimizerHash(rank.engine);
    if (rank.rank == 0) expected[0] = hash;
  });
  REQUIRE(run.hashes[4] == expected[0]);
}

Trial TrialOf(int world, int64_t replicate, Precision precision, ShardingConfig::GradSync sync) {
  Trial trial = MakeBase(ModelConfig::Family::kGpt2, true, precision, world, 2).trial;
  trial.config.parallel.replicate = replicate;
  trial.config.sharding.grad_sync = sync;
  return trial;
}

std::vector<Trial> Trials() {
  using Sync = ShardingConfig::GradSync;
  std::vector<Trial> trials;
  for (const auto& [world, replicate] : {std::pair{1, 1}, {2, 1}, {2, 2}, {3, 1}, {4, 1}, {4, 2}})
    for (const Precision precision : {Precision::kFp32, Precision::kBf16All})
      for (const Sync sync : {Sync::kEvery, Sync::kLast})
        trials.push_back(TrialOf(world, replicate, precision, sync));
  for (const auto& [world, replicate] : {std::pair{1, 1}, {3, 1}, {4, 2}}) {
    trials.push_back(TrialOf(world, replicate, Precision::kBf16All, Sync::kEvery));
    trials.back().config.optimizer.name = OptimizerConfig::Kind::kMuon;
  }
  for (const Base& base : SplitBases(ModelConfig::Family::kGpt2, Precision::kBf16All))
    trials.push_back(base.trial);
  for (const Base& base : ExpertBases(Precision::kBf16All))  // beside shard, beside replicate
    if (base.trial.world == 4 && base.trial.config.parallel.expert == 2)
      trials.push_back(base.trial);
  return trials;
}

TEST_CASE("a NaN in one rank's loss skips the update everywhere and names the rank") {
  for (const Trial& trial : Trials())
    for (int rank = 0; rank < trial.world; ++rank) {
      INFO(ToString(MeshOf(trial.config, trial.world)) << " rank " << rank);
      CheckSkipped(trial, {rank, {.loss_nan = true, .grad_unit = -1}});
    }
}

TEST_CASE(
    "a NaN in one unit's gradient on one rank skips the update everywhere and names unit and "
    "rank") {
  for (const Trial& trial : Trials()) {
    const AssembledRun run = Assemble(trial.config, trial.world, {Backend::kCpu, 0}, {"train"});
    const auto units = static_cast<int64_t>(run.layout.flats.size());
    for (int64_t unit = 0; unit < units; ++unit) {
      const int rank = static_cast<int>((unit + 1) % trial.world);
      INFO(ToString(MeshOf(trial.config, trial.world)) << " unit " << unit << " rank " << rank);
      CheckSkipped(trial, {rank, {.loss_nan = false, .grad_unit = unit}});
    }
  }
}

TEST_CASE("a step is skipped the same way by every executor") {
  using Graph = ExecutionConfig::Graph;
  const Fault fault{1, {.loss_nan = false, .grad_unit = 2}};
  Trial trial = TrialOf(2, 1, Precision::kBf16, ShardingConfig::GradSync::kLast);
  const FaultyRun reference = RunWithFault(trial, fault);
  for (const Graph graph : {Graph::kMicrobatch, Graph::kOff}) {
    trial.config.execution.graph = graph;
    REQUIRE(RunWithFault(trial, fault).hashes == reference.hashes);
  }
  trial.adversary_seed = 11;
  REQUIRE(RunWithFault(trial, fault).hashes == reference.hashes);
  trial.adversary_seed.reset();
  trial.config.execution.checked = true;
  REQUIRE(RunWithFault(trial, fault).hashes == reference.hashes);
}

TEST_CASE(
    "clipping scales by clip / norm when the norm is above it, and not at all below or when it is "
    "off") {
  Trial trial = TrialOf(2, 1, Precision::kFp32, ShardingConfig::GradSync::kLast);
  trial.config.optimizer.clip = 0;
  const Outcome off = RunTrial(trial);
  const double norm = off.scalars[0].grad_norm;
  REQUIRE(norm > 0);
  REQUIRE(off.scalars[0].clip_scale == 1);
  trial.config.optimizer.clip = 2 * norm;
  const Outcome above = RunTrial(trial);
  REQUIRE(above.scalars[0].grad_norm == norm);
  REQUIRE(above.scalars[0].clip_scale == 1);
  trial.config.optimizer.clip = norm / 4;
  const Outcome clipped = RunTrial(trial);
  REQUIRE(clipped.scalars[0].grad_norm == norm);
  REQUIRE(clipped.scalars[0].clip_scale == Approx(0.25).epsilon(1e-15));
  REQUIRE(clipped.optimizer_hash != off.optimizer_hash);
}

}  // namespace
}  // namespace millrace::test
