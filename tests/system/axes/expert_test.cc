// Experts on ranks of their own, beside the same model with all experts on every rank:
// split_trial.h.
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/exec/logical_tensors.h"
#include "tests/system/axes/split_trial.h"

namespace millrace::test {
namespace {

using Family = ModelConfig::Family;
constexpr Family kFamilies[] = {Family::kQwen3Moe, Family::kNemotronH};

// Sizes that two ranks along tensor and four along expert divide.
Trial TrialOf(Family family, const SplitShape& shape) {
  Trial trial = SplitTrial(family, shape, 2, 8);
  ModelConfig& model = trial.config.model;
  model.moe = {.experts = 8, .top_k = 3, .ffn = 13};
  if (family == Family::kNemotronH) {
    model.pattern = "E*EM";
    model.moe.experts = 4;  // a piece has no room for more rows than a rank has experts
    model.moe.shared_ffn = 6;
    model.moe.bias = false;
    if (shape.context > 1) model.pattern = "E*E*";
  }
  trial.steps = 4;
  return trial;
}

std::string Describe(const SplitShape& s) {
  return "replicate " + std::to_string(s.replicate) + " shard " + std::to_string(s.shard) +
         " context " + std::to_string(s.context) + " tensor " + std::to_string(s.tensor) +
         " expert " + std::to_string(s.expert) + " accumulate " + std::to_string(s.accumulate);
}

const std::vector<SplitShape> kShapes = {
    {.expert = 2},
    {.expert = 4},
    {.accumulate = 3, .expert = 2},
    {.shard = 2, .expert = 2},
    {.replicate = 2, .accumulate = 3, .expert = 2},
    {.tensor = 2, .expert = 2},
    {.shard = 3, .expert = 4},
};

TEST_CASE("experts on ranks of their own train as on every rank", "[expert]") {
  for (const Family family : kFamilies) {
    const Outcome whole = RunTrial(TrialOf(family, {}));
    for (const SplitShape& shape : kShapes) {
      INFO(Name(family) << " " << Describe(shape));
      RequireClose(RunTrial(TrialOf(family, shape)), whole);
    }
  }
  const SplitShape context = {.context = 2, .expert = 2};
  RequireClose(RunTrial(TrialOf(Family::kQwen3Moe, context)),
               RunTrial(TrialOf(Family::kQwen3Moe, {})));
}

// Experts in the block that predicts one token further alone: their rows are sent behind the trunk.
Trial FurtherTrialOf(const SplitShape& shape) {
  Trial trial = TrialOf(Family::kNemotronH, shape);
  trial.config.model.pattern = "M*";
  trial.config.model.mtp = {.depth = 1, .loss_scale = 0.3, .pattern = "*E"};
  return trial;
}

TEST_CASE("experts that predict further, on ranks of their own, train as on every rank",
          "[expert]") {
  const Outcome whole = RunTrial(FurtherTrialOf({}));
  for (const SplitShape& shape : {SplitShape{.shard = 2},
                                  {.expert = 2},
                                  {.accumulate = 3, .expert = 2},
                                  {.shard = 2, .expert = 2}}) {
    INFO(Describe(shape));
    Trial trial = FurtherTrialOf(shape);
    const Outcome split = RunTrial(trial);
    RequireClose(split, whole);
    trial.config.execution.checked = true;
    CHECK(RunTrial(trial).Bits() == split.Bits());
  }
  // Their loss is a part of it.
  Trial without = FurtherTrialOf({});
  without.config.model.mtp.loss_scale = 0.2;
  CHECK(RunTrial(without).scalars[0].loss < 0.99 * whole.scalars[0].loss);
}

TEST_CASE("experts split over tensor, too, train as on every rank, and load at other meshes",
          "[expert]") {
  for (const Family family : kFamilies) {
    const auto over_tensor = [&](const SplitShape& shape) {
      Trial trial = TrialOf(family, shape);
      trial.config.parallel.experts_over_tensor = shape.tensor > 1;
      return trial;
    };
    const Outcome whole = RunTrial(TrialOf(family, {}));
    for (const SplitShape& shape :
         {SplitShape{.tensor = 2}, {.tensor = 2, .accumulate = 3, .expert = 2}}) {
      INFO(Name(family) << " " << Describe(shape));
      Trial trial = over_tensor(shape);
      const Outcome plain = RunTrial(trial);
      RequireClose(plain, whole);
      trial.config.execution.checked = true;
      CHECK(RunTrial(trial).Bits() == plain.Bits());
      // Half of the experts on a rank, half of their weights.
      CHECK(plain.arena_bytes < RunTrial(TrialOf(family, shape)).arena_bytes);
    }
    CheckEvaluation(over_tensor, {.tensor = 2, .expert = 2}, 4);
    RequireCheckpointsLoad(over_tensor, over_tensor,
                           {{}, {.tensor = 2}, {.expert = 2}, {.tensor = 2, .expert = 2}});
  }
}

// Buffers that experts' rows are written to in the forward and read from in the backward.
int64_t KeptOfExperts(const StepPlan& plan) {
  std::set<BufferId> written, kept;
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops) {
      if (body.phase == Phase::kForward) {
        if (const auto* product = std::get_if<GroupedMatmulOp<View>>(&op.op))
          written.insert(product->out.buffer);
        if (const auto* activation = std::get_if<ExpertActivationOp<View>>(&op.op))
          written.insert(activation->out.buffer);
        continue;
      }
      ForEachUse(op.op, [&](const View& view, Access access, std::string_view) {
        if (Reads(access) && written.contains(view.buffer)) kept.insert(view.buffer);
      });
    }
  return std::ssize(kept);
}

TEST_CASE("what has room for more rows than come is not kept for the backward", "[expert]") {
  for (const Family family : kFamilies)
    for (const Recompute recompute : {Recompute::kNone, Recompute::kNorms}) {
      Trial trial = TrialOf(family, {.expert = 2});
      trial.config.memory.recompute = recompute;
      CHECK(KeptOfExperts(PlanOf(trial).plans.Of("train")) == 0);
      trial = TrialOf(family, {});
      trial.config.memory.recompute = recompute;
      CHECK(KeptOfExperts(PlanOf(trial).plans.Of("train")) > 0);
    }
}

// Of every row the same experts, whatever the router says: the first ones.
void RouteToFirst(const RouteOp<TensorView>& op, Stream& stream) {
  CpuKernels().route(op, stream);
  for (int64_t i = 0; i < op.ids.numel(); ++i)
    op.ids.as<int32_t>()[i] = static_cast<int32_t>(i % op.ids.dim(1));
}

// Whole numbers: most rows have ties, of which the lower experts are chosen.
void RouteWithTies(const RouteOp<TensorView>& op, Stream& stream) {
  for (int64_t i = 0; i < op.logits.numel(); ++i)
    op.logits.as<float>()[i] = std::nearbyint(op.logits.as<float>()[i]);
  CpuKernels().route(op, stream);
}

TEST_CASE("all rows may go to one rank, none to the others, and routers may have ties",
          "[expert]") {
  KernelTable kernels = CpuKernels();
  for (const auto route : {RouteToFirst, RouteWithTies})
    for (const Family family : kFamilies) {
      kernels.route = route;
      const auto trial_of = [&](const SplitShape& shape) {
        Trial trial = TrialOf(family, shape);
        trial.config.model.moe.top_k = 2;
        trial.kernels = &kernels;
        return trial;
      };
      const Outcome whole = RunTrial(trial_of({}));
      for (const SplitShape& shape : {SplitShape{.expert = 4}, {.shard = 2, .expert = 2}}) {
        INFO(Name(family) << " " << Describe(shape));
        RequireClose(RunTrial(trial_of(shape)), whole);
        Trial checked = trial_of(shape);
        checked.config.execution.checked = true;
        CHECK(RunTrial(checked).Bits() == RunTrial(trial_of(shape)).Bits());
      }
    }
}

TEST_CASE("evaluation and logits with experts on ranks of their own are the whole model's",
          "[expert]") {
  for (const Family family : kFamilies)
    for (const SplitShape& shape : {SplitShape{.expert = 2}, {.shard = 2, .expert = 2}})
      CheckEvaluation([&](const SplitShape& s) { return TrialOf(family, s); }, shape, 4);
}

TEST_CASE("a checkpoint of any mesh loads at any other with other experts on a rank", "[expert]") {
  for (const Family family : kFamilies)
    for (const Precision precision : {Precision::kFp32, Precision::kBf16All}) {
      const auto loads = [&](const SplitShape& shape) { return TrialOf(family, shape); };
      const auto saves = [&](const SplitShape& shape) {
        Trial trial = loads(shape);
        SetPrecision(trial.config, precision);
        return trial;
      };
      RequireCheckpointsLoad(saves, loads,
                             {{},
                              {.expert = 2},
                              {.shard = 2, .expert = 2},
                              {.replicate = 2, .expert = 2},
                              {.tensor = 2, .expert = 2},
                              {.shard = 3}});
    }
}

TEST_CASE("a model begins with the same weights, however its experts are split", "[expert]") {
  for (const Family family : kFamilies) {
    std::vector<std::string> hashes;
    for (const SplitShape& shape : {SplitShape{}, {.expert = 4}, {.shard = 2, .expert = 2}})
      RunEngines(TrialOf(family, shape), [&](RankContext& rank) {
        rank.engine.InitWeights(11);
        const std::string hash = ParamHash(rank.engine);
        if (rank.rank == 0) hashes.push_back(hash);
      });
    REQUIRE(hashes == std::vector<std::string>(hashes.size(), hashes[0]));
  }
}

// What ranks of one data rank read is equal, and every expert rank is a data rank of its own.
TEST_CASE("an expert rank reads sequences of its own", "[expert]") {
  const Trial trial = TrialOf(Family::kQwen3Moe, {.shard = 2, .tensor = 2, .expert = 2});
  const Mesh mesh = trial.config.parallel.MeshOver(trial.world);
  CHECK(mesh.data_ranks() == 4);
  CHECK(trial.config.parallel.DataRanks(trial.world) == 4);
  CHECK(RanksInWords(mesh) == "8 ranks: 4 data ranks of 2 ranks (tensor 2)");
  CHECK(RanksInWords(Mesh(1, 2).With(Axis::kExpert, 2)) == "4 ranks");
}

TEST_CASE("an expert axis that the experts do not divide into is refused, with those that would",
          "[expert]") {
  const auto refusal = [](const std::function<void(Config&)>& change) {
    return RefusalOf(TrialOf(Family::kQwen3Moe, {.expert = 2}), change);
  };
  using Catch::Contains;
  CHECK(refusal([](Config&) {}).empty());
  CHECK_THAT(refusal([](Config& c) { c.model.moe.experts = 9; }),
             Contains("2 ranks do not divide 9 experts") && Contains("expert can be 1, 3, 9"));
  CHECK_THAT(refusal([](Config& c) { c.model.family = Family::kQwen3; }),
             Contains("no experts to split"));
  CHECK_THAT(refusal([](Config& c) { c.parallel.shard = 2; }),
             Contains("shard * replicate * expert"));
  CHECK_THAT(refusal([](Config& c) {
               c.parallel.tensor = 2;
               c.parallel.replicate = 1;
               c.parallel.shard = std::nullopt;
               c.parallel.expert = 1;
               c.parallel.experts_over_tensor = true;
               c.model.moe.experts = 9;
             }),
             Contains("2 ranks do not divide 9 experts") && Contains("expert * tensor can be"));
}

}  // namespace
}  // namespace millrace::test
