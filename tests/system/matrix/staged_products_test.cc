// "direct concatenates nothing" has one exception: on CUDA a product that is added to bf16, or
// rounded once to it, is formed in f32 and added by the concat kernel. A plan for CUDA says how
// many bytes those are, as does the counter of a run. Needs no GPU.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "comm/comm_set.h"
#include "runtime/exec/bound_op.h"
#include "runtime/plan/cost/cost_model.h"
#include "tests/system/closed_forms.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

using Concat = ShardingConfig::GradConcat;
using Sync = ShardingConfig::GradSync;

int64_t Concatenated(const Trial& trial, Backend backend) {
  const AssembledRun run = Assemble(trial.config, trial.world, {backend, 0}, {"train"});
  const StepPlan& plan = run.plans.Of("train");
  return CountersOf(plan, plan.schedule, run.layout.mesh).concatenated_bytes;
}

TEST_CASE("a plan for CUDA counts what its products stage, and one for the CPU stages nothing") {
  int64_t staged_by_direct = 0, trials = 0;
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const auto precision :
         {Precision::kFp32, Precision::kBf16, Precision::kBf16Sums, Precision::kBf16All})
      for (const int world : {1, 2})
        for (const int64_t accumulate : {1, 3})
          for (const Sync sync : {Sync::kEvery, Sync::kLast})
            for (const Concat concat : {Concat::kEvery, Concat::kLast, Concat::kDirect}) {
              Base base = MakeBase(family, family == ModelConfig::Family::kGpt2, precision, world,
                                   accumulate);
              base.trial.config.sharding.grad_sync = sync;
              base.trial.config.sharding.grad_concat = concat;
              if (!Valid(base.trial)) continue;
              INFO(base.name << ", sync " << static_cast<int>(sync) << ", concat "
                             << static_cast<int>(concat));
              const int64_t host = Concatenated(base.trial, Backend::kCpu),
                            cuda = Concatenated(base.trial, Backend::kCuda);
              REQUIRE(cuda - host == StagedPerStep(base.trial));
              if (concat == Concat::kDirect) {
                REQUIRE(host == 0);
                REQUIRE((cuda == 0) ==
                        (precision == Precision::kFp32 || precision == Precision::kBf16));
                staged_by_direct += cuda;
              }
              ++trials;
            }
  CHECK(trials > 150);
  CHECK(staged_by_direct > 0);
}

TEST_CASE("a run counts what the plan says a product stages") {
  TestRanks().Run(1, [](const RankSetup& setup) {
    CommSet comms(setup.comms, {1, 1}, CommSharing::kSeparate, {});
    KernelTable kernels = setup.kernels;
    kernels.matmul = [](const MatmulOp<TensorView>&, Stream&) {};
    MatmulOp<TensorView> product;
    product.staged_bytes = 24;
    KernelCounters counters;
    const auto stream = setup.device.MakeStream(StreamRole::kCompute);
    for (int i = 0; i < 2; ++i)
      RunOp(product, kernels, comms, counters, StreamId::kCompute, *stream);
    CHECK(counters == KernelCounters{.concatenated_bytes = 48, .cast_bytes = 0, .copied_bytes = 0});
  });
}

}  // namespace
}  // namespace millrace::test
