// What exchanges bring to the forward, kept for the backward where bytes are free, beside the same
// exchanged again.
#include "runtime/plan/schedule/kept_exchanges.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "runtime/plan/cost/timeline.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/lower/lower.h"
#include "runtime/plan/schedule/planner.h"
#include "tests/system/axes/exact_trial.h"
#include "tests/system/axes/split_trial.h"

namespace millrace::test {
namespace {

using Family = ModelConfig::Family;

constexpr double kGib = int64_t{1} << 30;

Trial TrialOf(Family family, const SplitShape& shape, Recompute recompute) {
  Trial trial = SplitTrial(family, shape, shape.tensor == 3 ? 3 : 2, 12);
  if (family == Family::kQwen3Moe) trial.config.model.moe = {.experts = 4, .top_k = 2, .ffn = 13};
  trial.config.memory.recompute = recompute;
  trial.steps = 3;
  return trial;
}

// The same run, but that its training step keeps nothing.
AssembledRun KeepingNothing(const Trial& trial, AssembledRun run) {
  for (UnitRecompute& unit : run.recompute.units) unit.kept.clear();
  const Program program =
      Lower(AddGradients(ForwardOf(trial), run.recompute.units), LowerOptions{});
  run.plans.plans = {PlanStep(run.layout, run.plans.states, program, run.options, "train")};
  return run;
}

Outcome Train(const Trial& trial, const AssembledRun& run) {
  std::vector<Outcome> ranks(static_cast<size_t>(trial.world));
  TestRanks().Run(trial.world, [&](const RankSetup& setup) {
    RunRank(setup, trial, run, [&](RankContext& rank) {
      ranks[static_cast<size_t>(rank.rank)] = TrainOnRank(rank, trial);
    });
  });
  for (const Outcome& other : ranks) REQUIRE(other.Bits() == ranks[0].Bits());
  return std::move(ranks[0]);
}

int64_t Gathers(const Outcome& outcome) { return outcome.counters[0].comm.all_gathers; }
int64_t Gathered(const Outcome& outcome) { return outcome.counters[0].comm.gathered_bytes; }

TEST_CASE("kept, rows and keys have the bits of those that are exchanged again",
          "[tensor][context][expert]") {
  for (const auto& [family, shape] :
       {std::pair{Family::kGpt2, SplitShape{.tensor = 2}},
        {Family::kLlama, SplitShape{.tensor = 3}},
        {Family::kLlama, SplitShape{.shard = 2, .tensor = 2, .accumulate = 3}},
        {Family::kLlama, SplitShape{.context = 2}},
        {Family::kLlama, SplitShape{.context = 2, .tensor = 2}},
        {Family::kQwen3Moe, SplitShape{.tensor = 2, .expert = 2}}})
    for (const Recompute recompute : {Recompute::kNone, Recompute::kNorms, Recompute::kBlock}) {
      INFO(Name(family) << " context " << shape.context << " tensor " << shape.tensor << " expert "
                        << shape.expert << " recompute " << Name(recompute));
      Trial trial = TrialOf(family, shape, recompute);
      trial.config.memory.budget_gib = 1;  // room for all
      const AssembledRun keeps = PlanOf(trial);
      const KeptExchanges& kept = keeps.recompute.exchanges;
      REQUIRE(kept.kept == kept.all);
      REQUIRE(kept.all > 0);
      const Outcome with = Train(trial, keeps),
                    without = Train(trial, KeepingNothing(trial, keeps));
      CHECK(with.Bits() == without.Bits());
      const int64_t microbatches = trial.steps * shape.accumulate;
      CHECK(Gathers(without) - Gathers(with) == microbatches * kept.kept);
      CHECK(Gathered(without) - Gathered(with) == microbatches * kept.wire_bytes);
      trial.config.execution.checked = true;
      CHECK(Train(trial, keeps).Bits() == with.Bits());
    }
}

TEST_CASE("what experts receive is never kept: it has room for more rows than come", "[expert]") {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kNorms, Recompute::kBlock}) {
    Trial trial = TrialOf(Family::kQwen3Moe, {.expert = 2}, recompute);
    trial.config.memory.budget_gib = 1;
    CHECK(PlanOf(trial).recompute.exchanges == KeptExchanges{});
  }
}

TEST_CASE("without a budget the arena is what it would be, and the simulated step shorter",
          "[tensor][context]") {
  int64_t some = 0, all = 0;
  for (const SplitShape& shape :
       {SplitShape{.tensor = 2}, SplitShape{.shard = 2, .tensor = 2, .accumulate = 3},
        SplitShape{.context = 2, .tensor = 2}})
    for (const Recompute recompute : {Recompute::kNone, Recompute::kBlock}) {
      const Trial trial = TrialOf(Family::kLlama, shape, recompute);
      const AssembledRun run = PlanOf(trial), none = KeepingNothing(trial, run);
      const StepPlan &plan = run.plans.Of("train"), &other = none.plans.Of("train");
      CHECK(plan.arena_bytes <= other.arena_bytes);
      const Machine machine = MachineOfChoices(Backend::kCpu, trial.world);
      const auto seconds = [&](const StepPlan& of) {
        return Simulate(of, of.schedule, run.layout.mesh, machine).seconds;
      };
      some += run.recompute.exchanges.kept;
      all += run.recompute.exchanges.all;
      if (run.recompute.exchanges.kept > 0) CHECK(seconds(plan) < seconds(other));
    }
  CHECK(some > 0);
  CHECK(some < all);
}

// Of a model whose blocks gather alike, the units that keep what they gather, first to last.
std::vector<bool> UnitsThatKeep(const AssembledRun& run) {
  std::vector<bool> keep;
  for (size_t u = 0; u < run.layout.units.size(); ++u)
    if (run.layout.units[u].role == UnitRole::kBlock)
      keep.push_back(!run.recompute.units[u].kept.empty());
  return keep;
}

TEST_CASE("a larger budget keeps more, the last units first, and is never exceeded", "[tensor]") {
  Trial trial = TrialOf(Family::kLlama, {.tensor = 2}, Recompute::kNone);
  trial.config.model.layers = 6;
  const int64_t least = KeepingNothing(trial, PlanOf(trial)).plans.Of("train").arena_bytes;
  trial.config.memory.budget_gib = 1;
  const int64_t most = PlanOf(trial).plans.Of("train").arena_bytes;
  REQUIRE(most > least);
  int64_t last = -1;
  std::vector<int64_t> found;
  for (int i = 0; i <= 6; ++i) {
    const int64_t budget = least + (most - least) * i / 6;
    trial.config.memory.budget_gib = static_cast<double>(budget) / kGib;
    const AssembledRun run = PlanOf(trial);
    CHECK(run.plans.Of("train").arena_bytes <= budget);
    CHECK(run.recompute.exchanges.kept >= last);
    last = run.recompute.exchanges.kept;
    found.push_back(last);
    const std::vector<bool> keep = UnitsThatKeep(run);
    CHECK(std::is_sorted(keep.begin(), keep.end()));
  }
  CHECK(found.front() < found[3]);
  CHECK(found[3] < found.back());
  CHECK(found.back() == PlanOf(trial).recompute.exchanges.all);
}

TEST_CASE("what stays gathered by sharding.reshard=auto is taken before", "[tensor]") {
  Trial trial = TrialOf(Family::kLlama, {.shard = 2, .tensor = 2}, Recompute::kNone);
  trial.config.sharding.reshard = Reshard::kAuto;
  trial.config.memory.budget_gib = 1;
  const AssembledRun all = PlanOf(trial);
  CHECK(all.recompute.exchanges.kept == all.recompute.exchanges.all);
  // To the byte what weights alone take.
  const int64_t weights = KeepingNothing(trial, all).plans.Of("train").arena_bytes;
  trial.config.memory.budget_gib = static_cast<double>(weights) / kGib;
  const AssembledRun tight = PlanOf(trial);
  CHECK(tight.plans.Of("train").reshard == all.plans.Of("train").reshard);
  CHECK(tight.recompute.exchanges.kept < all.recompute.exchanges.kept);
  CHECK(tight.plans.Of("train").arena_bytes <= weights);
}

}  // namespace
}  // namespace millrace::test
