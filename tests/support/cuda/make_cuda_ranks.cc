#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/local/run_ranks.h"
#include "comm/nccl/nccl_factory.h"
#include "comm/peer/peer_factory.h"
#include "kernels/cuda/cuda_kernels.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/cuda/launch.h"
#include "runtime/base/error.h"
#include "runtime/config/config.h"
#include "tests/support/cuda/cuda_ranks.h"

namespace millrace::test {
namespace {

class CudaRanks final : public Ranks {
 public:
  explicit CudaRanks(GpuTransport transport) : transport_(transport) {}
  BackendTraits Traits(int) const override { return {Backend::kCuda, 0}; }
  int MaxWorld() const override {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
  }
  bool captures() const override { return true; }
  bool RoundsInGathers() const override { return transport_ == GpuTransport::kPeers; }
  void Run(int world, const std::function<void(const RankSetup&)>& fn) override {
    LocalWorld ranks(world, {.timeout = std::chrono::seconds(60)});
    RunRanks(ranks, [&](CommFactory& host) { RunOne(host, fn); });
  }
  void RunOne(CommFactory& host, const std::function<void(const RankSetup&)>& fn) override {
    std::vector<int> everyone(static_cast<size_t>(host.world_size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    const std::unique_ptr<Communicator> meet = host.Make(everyone, "tear-down");
    CudaDevice device(host.rank());
    device.Attached<cuda::LaunchPolicy>().early = ExecutionConfig{}.programmatic_launch;
    NcclOptions options;
    options.threads = RankThreads::kAllow;
    std::unique_ptr<CommFactory> factory = MakeNcclCommFactory(host, device, options);
    if (transport_ == GpuTransport::kPeers && everyone.size() > 1) {
      factory = MakePeerCommFactory(host, std::move(factory), device,
                                    [](const std::vector<int>&) { return true; });
      MR_CHECK(
          dynamic_cast<PeerCommunicator*>(factory->Make(everyone, "looked at").get()) != nullptr,
          "gathers do not move over peers' memory");
    }
    fn({*factory, device, CudaKernels(), Traits(host.world_size())});
    meet->Barrier();  // the last rank to destroy a communicator frees this GPU's part, too
  }

 private:
  const GpuTransport transport_;
};

}  // namespace

std::unique_ptr<Ranks> MakeCudaRanks(GpuTransport transport) {
  // Before any NCCL call, and before there are other threads. The user's word stays.
  setenv("NCCL_CUMEM_ENABLE", "0", /*replace=*/0);  // RankThreads says why
  return std::make_unique<CudaRanks>(transport);
}

}  // namespace millrace::test
