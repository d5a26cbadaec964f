// Parameters that the model has and its forward never reads: exact zeros as gradients, in every
// step, also where their bytes held other gradients before.
#include <catch2/catch.hpp>

#include "comm/host_collectives.h"
#include "comm/local/run_ranks.h"
#include "kernels/cpu/cpu_kernels.h"
#include "models/model.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/base/error.h"
#include "runtime/exec/agreement/plan_comms.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/plan/check/checker.h"
#include "runtime/plan/graph/gradients.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

constexpr const char* kUnused[] = {"h.1.unused.weight", "unused.weight", "unused.bias"};

// The tiny model with an unused matrix in a block, and a unit of which nothing is used.
AssembledRun AssembleWithUnused(const Config& config, int world) {
  const std::unique_ptr<Model> model = MakeModel(ModelOptionsOf(config));
  AssembledRun run;
  run.spec = model->spec();
  const auto param = [](const char* name, std::vector<int64_t> dims) {
    ParamSpec spec{.name = name, .dims = std::move(dims)};
    spec.padded_rows = spec.dims[0];
    spec.decay = true;
    return spec;
  };
  for (size_t u = 0; u < run.spec.units.size(); ++u) {
    if (run.spec.units[u].name != "h.1") continue;
    run.spec.units[u].params.insert(run.spec.units[u].params.begin() + 2,
                                    param(kUnused[0], {13, 9}));
    run.spec.units.insert(run.spec.units.begin() + static_cast<std::ptrdiff_t>(u) + 1,
                          UnitSpec{"h.9", {param(kUnused[1], {5, 7}), param(kUnused[2], {3})}});
    break;
  }
  const Mesh mesh{static_cast<int>(config.parallel.replicate),
                  static_cast<int>(config.parallel.Shard(world))};
  run.layout = PlanShards(run.spec, mesh, PrecisionOf(config));
  run.options = PlanOptionsOf(config, world, {Backend::kCpu, ScratchBytes(world)});
  ForwardBuilder builder(run.spec, {config.train.micro_batch, config.model.seq_len},
                         run.layout.precision.compute, run.layout.precision.norm_params);
  model->EmitForward(builder, HeadMode::kTrainLoss);
  const SemanticGraph graph = AddGradients(std::move(builder).Finish(), Recompute::kNone);
  const Program program = Lower(graph, LowerOptions{});
  run.plans.states = PlanStates(run.layout, run.options, {&program});
  run.plans.plans = {PlanStep(run.layout, run.plans.states, program, run.options, "train")};
  CheckPlan(run.plans.Of("train"), mesh, run.options.accumulate);
  return run;
}

void CheckUnused(const Trial& trial) {
  const AssembledRun run = AssembleWithUnused(trial.config, trial.world);
  LocalWorld world(trial.world, {.timeout = std::chrono::seconds(60)});
  RunRanks(world, [&](CommFactory& factory) {
    CommSet comms(factory, run.layout.mesh, CommSharing::kSeparate, CommSpecsOf(run.plans.All()));
    const std::unique_ptr<Device> device = MakeHostDevice();
    Engine engine({device.get(), &CpuKernels(), &comms}, run.layout, run.plans, {});
    engine.InitWeights(3);
    RankContext rank{engine, run, factory.rank(), factory.world_size()};
    for (int64_t step = 0; step < 3; ++step) {
      const StepScalars scalars = StepOn(rank, trial.config, step);
      MR_CHECK_EQ(scalars.applied, 1, "finite");
    }
    for (const char* const kind : {"adam_m", "adam_v"}) {
      int unused = 0;
      ForEachLogicalTensor(
          engine, kind, [&](const ParamPlacement& param, std::span<const float> values) {
            const bool is_unused = std::find(std::begin(kUnused), std::end(kUnused),
                                             param.spec.name) != std::end(kUnused);
            unused += is_unused;
            const bool zero =
                std::all_of(values.begin(), values.end(), [](float v) { return v == 0; });
            MR_CHECK(zero == is_unused, "moments of {}: all zero is {}", param.spec.name, zero);
          });
      MR_CHECK_EQ(unused, 3, "unused parameters");
    }
  });
}

TEST_CASE("unused parameters get exact zeros in every concat, synchronisation and precision") {
  using Concat = ShardingConfig::GradConcat;
  using Sync = ShardingConfig::GradSync;
  for (const auto& [world, replicate] : {std::pair{1, 1}, {2, 1}, {3, 1}, {4, 2}, {2, 2}})
    for (const Concat concat : {Concat::kEvery, Concat::kLast, Concat::kDirect})
      for (const Sync sync : {Sync::kEvery, Sync::kLast})
        for (const Precision precision : {Precision::kFp32, Precision::kBf16All}) {
          Trial trial = MakeBase(ModelConfig::Family::kGpt2, true, precision, world, 2).trial;
          trial.config.parallel.replicate = replicate;
          trial.config.sharding.grad_concat = concat;
          trial.config.sharding.grad_sync = sync;
          if (!Valid(trial)) continue;
          INFO("world " << world << " replicate " << replicate << " concat "
                        << static_cast<int>(concat) << " sync " << static_cast<int>(sync));
          REQUIRE_NOTHROW(CheckUnused(trial));
        }
}

}  // namespace
}  // namespace millrace::test
