// Processes under mpirun and threads of one process train the same bits, and count the same bytes.
#include <catch2/catch.hpp>

#include "comm/mpi/mpi_factory.h"
#include "comm/mpi/mpi_runtime.h"
#include "tests/system/options.h"
#include "third_party/catch2/session.h"

namespace millrace::test {
namespace {

MpiRuntime* runtime = nullptr;  // of main(), for the test cases

void CheckTransports(const Trial& trial) {
  const std::unique_ptr<CommFactory> factory =
      MakeMpiCommFactory(*runtime, {{.timeout = std::chrono::seconds(60)}});
  Outcome over_mpi;
  const AssembledRun run = PlanOf(trial);
  RunRank(*factory, trial, run, [&](RankContext& rank) { over_mpi = TrainOnRank(rank, trial); });
  const Outcome in_process = RunTrial(trial);
  CHECK(over_mpi.Bits() == in_process.Bits());
  CHECK(over_mpi.counters[0] == in_process.counters[static_cast<size_t>(factory->rank())]);
  CHECK(over_mpi.plan_hash == in_process.plan_hash);
}

TEST_CASE("processes and threads train the same bits") {
  const int world = runtime->world_size();
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const Precision precision : {Precision::kFp32, Precision::kBf16All}) {
      Trial trial =
          MakeBase(family, family == ModelConfig::Family::kGpt2, precision, world, 2).trial;
      CheckTransports(trial);
      trial.sharing = CommSharing::kShared;
      trial.adversary_seed = 3;
      if (world % 2 == 0) trial.config.parallel.replicate = 2;
      CheckTransports(trial);
      for (const Base& base : SplitBases(family, precision))
        if (base.trial.world == world) CheckTransports(base.trial);
      if (family != ModelConfig::Family::kLlama) continue;
      for (const Base& base : ExpertBases(precision))
        if (base.trial.world == world) CheckTransports(base.trial);
    }
}

}  // namespace
}  // namespace millrace::test

int main(int argc, char** argv) {
  millrace::MpiRuntime mpi(&argc, &argv);
  millrace::test::runtime = &mpi;
  return millrace::RunCatchSession(argc, argv);
}
