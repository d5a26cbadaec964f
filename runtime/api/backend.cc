#include "runtime/api/backend.h"

#include "comm/host_collectives.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/api/host_facts.h"
#include "runtime/api/peer_decision.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/base/error.h"

namespace millrace {

Backend ChooseBackend(const Config& config) {
  using Wanted = ExecutionConfig::Backend;
  switch (config.execution.backend) {
    case Wanted::kCpu:
      return Backend::kCpu;
    case Wanted::kAuto:
      return CudaBuiltIn() && VisibleGpus() > 0 ? Backend::kCuda : Backend::kCpu;
    case Wanted::kCuda:
      MR_REQUIRE(
          ErrorCode::kDevice, VisibleGpus() > 0,
          "execution.backend is cuda, but no GPU is visible here: {} (`millrace doctor` says "
          "more); `auto` and `cpu` run without one",
          WhyNoGpu());
      return Backend::kCuda;
  }
  return Backend::kCpu;
}

BackendTraits TraitsOf(Backend backend, int world) {
  return {backend, backend == Backend::kCpu ? ScratchBytes(world) : 0, 0};
}

RankDevice MakeRankDevice(Backend backend, CommFactory& host, Log& log, const Config& config,
                          const Mesh& mesh, std::optional<int> gpu) {
  if (backend == Backend::kCuda) return MakeCudaRankDevice(host, log, config, mesh, gpu);
  RankDevice rank;
  rank.notice = DecidePeerMemory(config.execution.peer_memory, backend, mesh, {}).notice;
  rank.device = MakeHostDevice();
  rank.environment.device = rank.device.get();
  rank.environment.kernels = &CpuKernels();
  rank.environment.comm_factory = &host;
  rank.environment.traits = TraitsOf(Backend::kCpu, host.world_size());
  rank.machine = FindMachine("cpu");
  rank.facts = {{"device", CpuModel()}, {"BLAS", BlasLibrary()}};
  return rank;
}

}  // namespace millrace
