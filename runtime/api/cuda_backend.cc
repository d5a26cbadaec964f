// A rank on a GPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "comm/nccl/nccl_factory.h"
#include "comm/nccl/nccl_options.h"
#include "comm/peer/peer_factory.h"
#include "kernels/cuda/cuda_kernels.h"
#include "runtime/api/backend.h"
#include "runtime/api/cuda_libraries.h"
#include "runtime/api/cuda_tuning.h"
#include "runtime/api/gpu_choice.h"
#include "runtime/api/host_facts.h"
#include "runtime/api/peer_decision.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/cuda/gpu_uuid.h"
#include "runtime/base/cuda/launch.h"
#include "runtime/base/cuda/nvtx_ranges.h"
#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/plan/cost/communicators.h"
#include "runtime/run/assemble.h"

namespace millrace {
namespace {

// Of those that this process sees. Makes no context.
std::vector<std::string> GpuIds() {
  std::vector<std::string> ids(static_cast<size_t>(VisibleGpus()));
  for (size_t gpu = 0; gpu < ids.size(); ++gpu) {
    cudaDeviceProp properties;
    MR_CUDA(cudaGetDeviceProperties(&properties, static_cast<int>(gpu)));
    ids[gpu] = GpuUuid(properties);
  }
  return ids;
}

// Plans count the memory of the communicators that NcclFactory makes.
static_assert(NcclOptions().max_ctas == kCommunicatorChannels &&
              kSmallCtas == kSmallCommunicatorChannels);

// Figures of the GPU for MFU and predictions; of a GPU that nobody has measured, an H100's, and
// said so. Never more memory than it has (a GH200 is an H200 with less).
Machine MachineOf(const CudaDevice& device) {
  const std::string name = device.name();
  const auto has = static_cast<int64_t>(device.properties().totalGlobalMem);
  for (const char* known : {"H200", "H100"})
    if (name.find(known) != std::string::npos) {
      Machine machine = FindMachine(known[1] == '2' ? "h200" : "h100");
      machine.device_bytes = std::min(machine.device_bytes, has);
      return machine;
    }
  Machine machine = FindMachine("h100");
  machine.device_bytes = has;
  machine.title = fmt::format("{} (not measured; figures of {})", name, machine.title);
  return machine;
}

// What all ranks have room for: plans that fill a device are the same on each.
int64_t LeastOfRanks(CommFactory& host, int64_t bytes) {
  std::vector<int> everyone(static_cast<size_t>(host.world_size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  for (const std::string& of_rank :
       host.Make(everyone, "devices")->HostAllGather(std::to_string(bytes)))
    bytes = std::min<int64_t>(bytes, std::stoll(of_rank));
  return bytes;
}

RunEnvironment FactsOf(const CudaDevice& device) {
  RunEnvironment facts = {{"device", device.name()}, {"NVIDIA driver", KernelDriver()}};
  if (const std::string cuda = CudaOfDriver(); !cuda.empty())
    facts.emplace_back("CUDA of the driver", cuda);
  for (const LibraryReport& library : LoadedCudaLibraries())
    facts.emplace_back(library.name, library.loaded);
  return facts;
}

}  // namespace

bool CudaBuiltIn() { return true; }

int VisibleGpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string WhyNoGpu() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  return status == cudaSuccess ? "CUDA_VISIBLE_DEVICES leaves none" : cudaGetErrorString(status);
}

RankDevice MakeCudaRankDevice(CommFactory& host, Log& log, const Config& config, const Mesh& mesh,
                              std::optional<int> gpu) {
  auto device = std::make_unique<CudaDevice>(gpu ? *gpu : ChooseGpu(host, HostName(), GpuIds()));
  RankDevice rank;
  rank.ranges = MakeNvtxRanges();
  rank.environment.ranges = rank.ranges.get();
  rank.machine = MachineOf(*device);
  rank.machine.device_bytes = LeastOfRanks(host, rank.machine.device_bytes);
  rank.facts = FactsOf(*device);
  rank.comms = MakeNcclCommFactory(host, *device, {}, log);
  const PeerLinks links = config.execution.peer_memory == ExecutionConfig::PeerMemory::kOn
                              ? PeerLinks::kAny
                              : PeerLinks::kNvlink;
  const PeerDecision peers =
      DecidePeerMemory(config.execution.peer_memory, Backend::kCuda, mesh,
                       [&] { return PeerTrouble(host, *device, mesh, links); });
  if (peers.use)
    rank.comms = MakePeerCommFactory(
        host, std::move(rank.comms), *device,
        [copy = mesh.Group(host.rank(), kCopyAxes)](const std::vector<int>& ranks) {
          return std::includes(copy.begin(), copy.end(), ranks.begin(), ranks.end());
        },
        {}, log);
  if (peers.use) rank.machine = rank.machine.OverPeerMemory(false);
  rank.notice = peers.notice;
  rank.environment.peer_memory = peers.use;
  rank.environment.device = device.get();
  rank.environment.kernels = &CudaKernels();
  rank.environment.comm_factory = rank.comms.get();
  rank.environment.traits = TraitsOf(Backend::kCuda, host.world_size());
  rank.environment.traits.device_arena_bytes =
      ArenaBytes(mesh, ExchangeNeedsOf(config), rank.machine);
  device->Attached<cuda::LaunchPolicy>().early = config.execution.programmatic_launch;
  rank.environment.tuner = MakeTuner(*device);
  rank.device = std::move(device);
  return rank;
}

}  // namespace millrace
