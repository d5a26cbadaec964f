// Linked into a test of whole steps, makes its ranks run on GPUs: a thread and a GPU per rank, NCCL between
// them.
#include <cuda_runtime_api.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <vector>

#include "comm/local/run_ranks.h"
#include "comm/nccl/nccl_factory.h"
#include "kernels/cuda/cuda_kernels.h"
#include "runtime/base/cuda/cuda_device.h"
#include "tests/support/ranks.h"

namespace millrace::test {
namespace {

class CudaRanks final : public Ranks {
 public:
  BackendTraits Traits(int) const override { return {Backend::kCuda, 0}; }
  int MaxWorld() const override {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
  }
  bool captures() const override { return true; }
  void Run(int world, const std::function<void(const RankSetup&)>& fn) override {
    LocalWorld ranks(world, {.timeout = std::chrono::seconds(60)});
    RunRanks(ranks, [&](CommFactory& host) { RunOne(host, fn); });
  }
  void RunOne(CommFactory& host, const std::function<void(const RankSetup&)>& fn) override {
    std::vector<int> everyone(static_cast<size_t>(host.world_size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    const std::unique_ptr<Communicator> meet = host.Make(everyone, "tear-down");
    CudaDevice device(host.rank());
    const std::unique_ptr<CommFactory> factory = MakeNcclCommFactory(host, device, {});
    fn({*factory, device, CudaKernels(), Traits(host.world_size())});
    meet->Barrier();  // the last rank to destroy a communicator frees this GPU's part, too
  }
};

[[maybe_unused]] const bool chosen = (UseRanks(std::make_unique<CudaRanks>()), true);

}  // namespace
}  // namespace millrace::test
