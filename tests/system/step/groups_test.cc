// Whole runs with groups of parameters (optimizer.groups): constants that differ inside a flat
// parameter, another rule for some matrices, and parameters that are not trained.
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <tuple>

#include "runtime/exec/logical_tensors.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

using Family = ModelConfig::Family;

Trial Grouped(Family family, Precision precision, int world, int64_t accumulate, bool muon) {
  Trial trial = MakeBase(family, family == Family::kGpt2, precision, world, accumulate).trial;
  SetGroups(trial.config, muon);
  return trial;
}

void CheckOptions(const Trial& trial) {
  REQUIRE(Valid(trial));
  const Outcome reference = RunTrial(trial);
  REQUIRE(reference.scalars.back().adam_t == trial.steps);
  for (const Option& option : BitwiseOptions()) {
    INFO(option.name);
    Trial changed = trial;
    option.set(changed);
    if (Valid(changed)) CHECK(RunTrial(changed).Bits() == reference.Bits());
  }
}

// Group by segment, and not: lr, betas, eps and decay are what they are anyway, but of one matrix
// whose decay is the only one.
TEST_CASE("groups that say what is so anyway change no bit") {
  for (const int world : {1, 3})
    for (const Precision precision : {Precision::kFp32, Precision::kBf16All})
      for (const auto moments : {PrecisionConfig::Format::kFp32, PrecisionConfig::Format::kBf16})
        for (const auto name : {OptimizerKind::kAdamW, OptimizerKind::kMuon}) {
          Trial trial = MakeBase(Family::kGpt2, true, precision, world, 2).trial;
          OptimizerConfig& optimizer = trial.config.optimizer;
          optimizer.name = name;
          optimizer.moments = moments;
          if (!Valid(trial)) continue;
          const Outcome without = RunTrial(trial);
          optimizer.groups = OptimizerGroups{{.parameters = {"h.1.mlp.*.weight", "embed/wte"},
                                              .lr = optimizer.lr,
                                              .weight_decay = optimizer.weight_decay},
                                             {.parameters = {"*.bias"}, .lr_mult = 1}};
          if (name == OptimizerKind::kAdamW) {
            optimizer.groups->front().betas = optimizer.betas;
            optimizer.groups->front().eps = optimizer.eps;
          }
          const Outcome with = RunTrial(trial);
          CHECK(with.Bits() == without.Bits());
          CHECK(with.plan_hash != without.plan_hash);
          CHECK(with.run.layout == without.run.layout);
        }
}

TEST_CASE("no option changes a bit of a run with groups") {
  for (const auto family : {Family::kGpt2, Family::kLlama})
    for (const auto& [world, replicate, precision] : {std::tuple{1, 1, Precision::kFp32},
                                                      {2, 1, Precision::kBf16All},
                                                      {3, 1, Precision::kFp32},
                                                      {4, 2, Precision::kBf16All}}) {
      INFO("world " << world << " replicate " << replicate);
      Trial trial = Grouped(family, precision, world, 3, /*muon=*/true);
      trial.config.parallel.replicate = replicate;
      trial.all_plans = world == 2;
      if (world == 3) trial.config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
      CheckOptions(trial);
    }
}

TEST_CASE("so it is where models, sequences or experts are split over ranks") {
  std::vector<Base> bases = ExpertBases(Precision::kBf16All);
  for (Base& base : SplitBases(Family::kLlama, Precision::kFp32)) bases.push_back(std::move(base));
  for (Base& base : bases) {
    INFO(base.name);
    if (base.trial.world > 3) continue;
    SetGroups(base.trial.config, /*muon=*/false);
    CheckOptions(base.trial);
  }
}

using Values = std::map<std::string, std::vector<float>>;

struct Weights {
  Values before, after;
};

Weights Trained(const Trial& trial) {
  Weights weights;
  const auto read = [](RankContext& rank, Values* to) {
    Values mine;
    ForEachLogicalTensor(rank.engine, "master",
                         [&](const ParamPlacement& param, std::span<const float> values) {
                           mine[param.spec.name] = {values.begin(), values.end()};
                         });
    if (rank.rank == 0) *to = std::move(mine);
  };
  RunEngines(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(7);
    read(rank, &weights.before);
    for (int64_t step = 0; step < 3; ++step) StepOn(rank, trial.config, step);
    read(rank, &weights.after);
  });
  return weights;
}

std::set<std::string> FrozenNames(const AssembledRun& run) {
  std::set<std::string> names;
  for (const ParamPlacement& param : run.layout.params)
    if (!param.spec.trainable) names.insert(param.spec.name);
  return names;
}

TEST_CASE("what is frozen keeps every bit while all else is trained") {
  for (const auto family : {Family::kGpt2, Family::kLlama, Family::kNemotronH})
    for (const auto& [world, precision] :
         {std::pair{1, Precision::kBf16All}, {2, Precision::kFp32}}) {
      Trial trial = MakeBase(family, false, precision, world, 2).trial;
      OptimizerConfig& optimizer = trial.config.optimizer;
      SetGroups(trial.config, /*muon=*/false);
      // All below the second block, and of the tables one.
      optimizer.groups->front().parameters.push_back("embed*");
      const Weights weights = Trained(trial);
      const std::set<std::string> frozen = FrozenNames(PlanOf(trial));
      CHECK(frozen.size() > 5);
      for (const auto& [name, before] : weights.before) {
        CAPTURE(name);
        CHECK((weights.after.at(name) == before) == frozen.contains(name));
      }
    }
}

// Blocks below the first that is trained have no backward, and nothing that is frozen is reduced.
TEST_CASE("a plan forms and reduces no gradient of what is frozen, and keeps no moments of it") {
  Trial trial = MakeBase(Family::kGpt2, false, Precision::kBf16All, 2, 1).trial;
  trial.config.optimizer.groups =
      OptimizerGroups{{.parameters = {"embed*", "h.0.*", "h.1.*", "h.2.mlp.*"}, .frozen = true}};
  const AssembledRun run = PlanOf(trial);
  const StepPlan& plan = run.plans.Of("train");
  std::set<std::string> reduced, trained;
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops) {
      if (const auto* scatter = std::get_if<ReduceScatterOp<View>>(&op.op)) {
        CHECK(scatter->axes == Axis::kShard);
        reduced.insert(op.label);
      }
      const std::string unit = op.unit ? run.layout.unit(op.unit).name : "";
      if (body.phase != Phase::kBackward || unit.empty()) continue;
      if (std::holds_alternative<MatmulOp<View>>(op.op)) trained.insert(op.label);
    }
  for (const FlatParam& flat : run.layout.flats) {
    CAPTURE(flat.name);
    CHECK(reduced.contains("reduce/" + flat.name) == flat.key.trainable);
    CHECK(flat.slots().size() == (flat.key.trainable ? 3 : 1));
  }
  for (const std::string& label : trained) {
    CAPTURE(label);
    CHECK_FALSE(label.starts_with("h.0/"));
    CHECK_FALSE(label.starts_with("h.1/"));
    const bool weight_of_frozen =
        label.starts_with("h.2/mlp") && label.find("d_weight") != label.npos;
    CHECK_FALSE(weight_of_frozen);
  }
  CHECK(trained.size() > 4);
}

}  // namespace
}  // namespace millrace::test
