// A non-finite loss or gradient on one rank makes the update a no-op on all of them, bit for bit;
// the culprit is named; the next step goes on as if the bad one had not been.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/error.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/watch/bad_step.h"
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

// Gives the scalars of the step that was skipped.
StepScalars CheckSkipped(const Trial& trial, const Fault& fault) {
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
  return bad;
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
  for (const LinearEncoding linear : kFloat8Encodings) {
    const Base base =
        MakeFloat8Base(ModelConfig::Family::kLlama, linear, Precision::kBf16All, 2, 2);
    trials.push_back(base.trial);
    trials.back().config.precision.gather = WeightGather::kLinear;
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
      const StepScalars bad = CheckSkipped(trial, {rank, {.loss_nan = false, .grad_unit = unit}});
      // An expert's is another than what else its block has.
      REQUIRE(OffenderOf(bad, run.layout) ==
              fmt::format("gradient of unit {} on rank {}",
                          run.layout.flats[static_cast<size_t>(unit)].name, rank));
    }
    if (trial.config.parallel.expert > 1)
      REQUIRE(std::ranges::any_of(run.layout.flats, [](const FlatParam& flat) {
        return flat.name.find("@expert") != std::string::npos;
      }));
  }
}

// The rank whose rows go to experts 0, 1 and 2; those of the others go to 3, 4 and 5.
constexpr int kEvery = -1;
int senders = kEvery;
thread_local int this_rank = 0;

void RouteByRank(const RouteOp<TensorView>& op, Stream& stream) {
  CpuKernels().route(op, stream);
  const int32_t first = senders == kEvery || senders == this_rank ? 0 : 3;
  for (int64_t i = 0; i < op.ids.numel(); ++i)
    op.ids.as<int32_t>()[i] = first + static_cast<int32_t>(i % op.ids.dim(1));
}

struct Step {
  bool applied = false;
  std::string offender;
  double loss = 0;
};

// Two steps of a model of which `expert` of the second block has a NaN; it keeps it.
std::vector<Step> StepsWithNan(Trial trial, int64_t expert) {
  KernelTable kernels = CpuKernels();
  kernels.route = RouteByRank;
  trial.kernels = &kernels;
  std::vector<std::vector<Step>> ranks(static_cast<size_t>(trial.world));
  RunEngines(trial, [&](RankContext& rank) {
    this_rank = rank.rank;
    rank.engine.InitWeights(7);
    std::map<std::string, std::vector<float>> weights;
    ForEachLogicalTensor(rank.engine, "master",
                         [&](const ParamPlacement& param, std::span<const float> values) {
                           weights[param.spec.name].assign(values.begin(), values.end());
                         });
    std::vector<float>& down = weights.at("h.1.moe.experts.down.weight");
    if (expert >= 0)
      down[down.size() / 8 * static_cast<size_t>(expert) + 5] =
          std::numeric_limits<float>::quiet_NaN();
    WriteLogicalTensors(rank.engine, "master",
                        [&](const ParamPlacement& param) { return weights.at(param.spec.name); });
    for (int64_t step = 0; step < 2; ++step) {
      const std::string before = ParamHash(rank.engine) + OptimizerHash(rank.engine);
      const StepScalars scalars = StepOn(rank, trial.config, step);
      const bool moved = ParamHash(rank.engine) + OptimizerHash(rank.engine) != before;
      MR_CHECK(moved == (scalars.applied == 1), "step {}: moved {}", step, moved);
      ranks[static_cast<size_t>(rank.rank)].push_back(
          {scalars.applied == 1, scalars.applied == 1 ? "" : OffenderOf(scalars, rank.run.layout),
           scalars.loss});
    }
  });
  for (const std::vector<Step>& other : ranks)
    for (size_t s = 0; s < other.size(); ++s)
      REQUIRE(
          (other[s].applied == ranks[0][s].applied && other[s].offender == ranks[0][s].offender));
  return ranks[0];
}

TEST_CASE("a NaN in an expert's weights is in the loss of the ranks whose rows it gets, if any") {
  struct Case {
    int shard, expert, senders;
    int64_t nan;
    const char* says;  // null: nothing
  };
  // With an expert axis of 2, rank 0 has experts 0 to 3.
  for (const Case& c : {Case{1, 1, kEvery, 1, "loss on rank 0"},
                        {1, 1, kEvery, 5, nullptr},
                        {2, 1, kEvery, 1, "loss on rank 0"},
                        {2, 1, 1, 1, "loss on rank 1"},
                        {1, 2, kEvery, 1, "loss on rank 0"},
                        {1, 2, kEvery, 7, nullptr},
                        // On the rank that computes it, or on the other.
                        {1, 2, 0, 1, "loss on rank 0"},
                        {1, 2, 1, 1, "loss on rank 1"},
                        {1, 2, 0, 5, "loss on rank 1"},
                        {1, 2, 1, 5, "loss on rank 0"}}) {
    INFO("shard " << c.shard << " expert " << c.expert << ": expert " << c.nan << ", rows of rank "
                  << c.senders);
    Base base =
        MakeBase(ModelConfig::Family::kLlama, false, Precision::kFp32, c.shard * c.expert, 2);
    MakeExperts(base, c.expert);
    senders = c.senders;
    const std::vector<Step> steps = StepsWithNan(base.trial, c.nan);
    for (const Step& step : steps) {
      REQUIRE(step.applied == (c.says == nullptr));
      REQUIRE(step.offender == (c.says ? c.says : ""));
    }
    if (c.says) continue;
    const std::vector<Step> sound = StepsWithNan(base.trial, -1);
    for (const size_t s : {0, 1}) REQUIRE(steps[s].loss == sound[s].loss);
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
