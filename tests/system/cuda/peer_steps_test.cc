// Whole steps over the memory of peers beside the same steps over NCCL: where a sum has two addends
// both round it once, so every bit is the same.
#include <catch2/catch.hpp>

#include "tests/support/cuda/cuda_ranks.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

Outcome Over(GpuTransport transport, const Trial& trial) {
  std::unique_ptr<Ranks> before = UseRanks(MakeCudaRanks(transport));
  Outcome outcome = RunTrial(trial);
  UseRanks(std::move(before));
  return outcome;
}

bool HaveGpus(int world) {
  std::unique_ptr<Ranks> before = UseRanks(MakeCudaRanks(GpuTransport::kNccl));
  const bool have = HaveDevices(world);
  UseRanks(std::move(before));
  return have;
}

void CheckSame(const std::string& name, const Trial& trial) {
  INFO(name);
  const Outcome nccl = Over(GpuTransport::kNccl, trial), peers = Over(GpuTransport::kPeers, trial);
  CHECK(peers.Bits() == nccl.Bits());
  CHECK(peers.plan_hash == nccl.plan_hash);
  CHECK(peers.counters == nccl.counters);
}

TEST_CASE("two ranks: the bits of NCCL, however the steps are issued") {
  if (!HaveGpus(2)) return;
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const auto precision : {Precision::kFp32, Precision::kBf16, Precision::kBf16All})
      for (const auto graph : {ExecutionConfig::Graph::kStep, ExecutionConfig::Graph::kOff}) {
        Base base = MakeBase(family, family == ModelConfig::Family::kGpt2, precision, 2, 3);
        base.trial.config.execution.graph = graph;
        CheckSame(base.name + (graph == ExecutionConfig::Graph::kOff ? ", no graph" : ""),
                  base.trial);
      }
}

TEST_CASE(
    "two ranks: evaluation and generation plans, and one communicator for both kinds of call") {
  if (!HaveGpus(2)) return;
  Base base = MakeBase(ModelConfig::Family::kGpt2, true, Precision::kBf16, 2, 2);
  base.trial.all_plans = true;
  base.trial.sharing = CommSharing::kShared;
  CheckSame(base.name + ", shared", base.trial);
}

TEST_CASE("two copies on two GPUs each: the bits of NCCL") {
  if (!HaveGpus(4)) return;
  for (const auto precision : {Precision::kFp32, Precision::kBf16All}) {
    Base base = MakeBase(ModelConfig::Family::kLlama, false, precision, 4, 2);
    base.trial.config.parallel.replicate = 2;
    base.trial.config.parallel.shard = 2;
    CheckSame(base.name + ", 2 x 2", base.trial);
  }
}

}  // namespace
}  // namespace millrace::test
