#include "comm/peer/peer_factory.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/nccl/nccl_options.h"
#include "comm/peer/peer_mapping.h"
#include "comm/peer/peer_room.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

class PeerCommFactory final : public CommFactory {
 public:
  PeerCommFactory(CommFactory& host, std::unique_ptr<CommFactory> nccl, CudaDevice& device,
                  std::function<bool(const std::vector<int>& ranks)> wants,
                  const PeerOptions& options, Log& log)
      : host_(host),
        nccl_(std::move(nccl)),
        device_(device),
        wants_(std::move(wants)),
        options_(options),
        log_(log) {}

  int rank() const noexcept override { return host_.rank(); }
  int world_size() const noexcept override { return host_.world_size(); }

  std::unique_ptr<Communicator> Make(const std::vector<int>& ranks,
                                     const std::string& label) override {
    if (ranks.size() == 1 || !wants_(ranks)) return nccl_->Make(ranks, label);
    return MakePeerCommunicator(host_.Make(ranks, label), device_, label, options_, log_);
  }

  std::unique_ptr<Communicator> MakeSmall(const std::vector<int>& ranks,
                                          const std::string& label) override {
    return nccl_->MakeSmall(ranks, label);
  }

  std::unique_ptr<DeviceBuffer> AllocateArena(Device& device, int64_t bytes,
                                              const std::string& label) override {
    MR_REQUIRE(ErrorCode::kInvalidArgument, &device == &device_,
               "{}: an arena on {}, but this rank's peers map GPU {}", label, device.name(),
               device_.ordinal());
    return device.Allocate(bytes, label);
  }

  std::string WhyArenaStays() const override { return nccl_->WhyArenaStays(); }

 private:
  CommFactory& host_;
  const std::unique_ptr<CommFactory> nccl_;
  CudaDevice& device_;
  const std::function<bool(const std::vector<int>& ranks)> wants_;
  const PeerOptions options_;
  Log& log_;
};

// NVLink is told by atomic operations, which PCIe does not carry. A collective over `group`.
std::string OverPcie(Communicator& group, CudaDevice& device) {
  char own[32] = {};
  MR_CUDA(cudaDeviceGetPCIBusId(own, sizeof own, device.ordinal()));
  for (const std::string& bus : group.HostAllGather(own)) {
    if (bus == own) continue;
    int peer = 0, atomics = 0;
    MR_CUDA(cudaDeviceGetByPCIBusId(&peer, bus.c_str()));
    MR_CUDA(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported,
                                      device.ordinal(), peer));
    if (atomics == 0) return fmt::format("GPU {} reaches {} without NVLink", own, bus);
  }
  return "";
}

// What waits in a run, and what the GPU has room for.
std::string NoRoom(const CudaDevice& device, const Mesh& mesh) {
  const std::string trouble = WhyNoRoom(
      WaitingInRun({.gather = kPeerGatherBlocks,
                    .reduce = kPeerReduceBlocks,
                    .exchanges = mesh.Size({Axis::kContext, Axis::kExpert, Axis::kTensor}) > 1,
                    .replicas = mesh.Size(Axis::kReplicate) > 1 ? NcclOptions{}.max_ctas : 0,
                    .statistics = kSmallCtas}),
      PeerRoomOf(device));
  return trouble.empty() ? "" : fmt::format("no room on GPU {}: {}", device.ordinal(), trouble);
}

}  // namespace

std::string PeerTrouble(CommFactory& host, CudaDevice& device, const Mesh& mesh, PeerLinks links) {
  constexpr int64_t kProbeBytes = 2 << 20;  // a page of the driver
  std::vector<int> everyone(static_cast<size_t>(host.world_size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const auto world = host.Make(everyone, "peers of the world");
  const std::string label =
      fmt::format("peers of replica {}", mesh.Index(host.rank(), Axis::kReplicate));
  const auto group = host.Make(mesh.Group(host.rank(), kCopyAxes), label);
  const std::unique_ptr<DeviceBuffer> probe = device.Allocate(kProbeBytes, label);
  std::string trouble;
  try {
    static_cast<void>(PeerMapping::Make(*group, device, label, probe->data(), probe->bytes()));
    trouble = NoRoom(device, mesh);
    if (links == PeerLinks::kNvlink) {
      const std::string slow = OverPcie(*group, device);
      if (trouble.empty()) trouble = slow;
    }
  } catch (const Error& error) {  // on all ranks of the group
    trouble = error.what();
  }
  // Unmapped before it is freed, too.
  const std::vector<std::string> all = world->HostAllGather(trouble);
  const auto first =
      std::find_if(all.begin(), all.end(), [](const std::string& t) { return !t.empty(); });
  return first == all.end() ? "" : *first;
}

std::unique_ptr<CommFactory> MakePeerCommFactory(
    CommFactory& host, std::unique_ptr<CommFactory> nccl, CudaDevice& device,
    std::function<bool(const std::vector<int>& ranks)> wants, const PeerOptions& options,
    Log& log) {
  return std::make_unique<PeerCommFactory>(host, std::move(nccl), device, std::move(wants), options,
                                           log);
}

}  // namespace millrace
