#include "tests/comm/nccl/gpu_case.h"

#include <catch2/catch.hpp>
#include <string>

#include "third_party/catch2/session.h"

namespace millrace::testing {

void OnGpuRanks(const NcclOptions& options, const std::function<void(GpuRank& rank)>& fn) {
  for (const RankReport& own : RunOnGpus(options, fn)) {
    INFO(ToString(options) << ", rank " << own.rank << ": " << own.report.Text());
    CHECK(own.report.ok());
  }
}

bool HavePeers() {
  if (GpuWorld() >= 2) return true;
  SkipCase("needs 2 GPUs, " + std::to_string(GpuWorld()) + " visible");
  return false;
}

int GpuTestMain(int argc, char** argv) {
  return GpuMain(argc, argv, [&] { return RunCatchSession(argc, argv); });
}

}  // namespace millrace::testing
