#include "comm/nccl/nccl_factory.h"

#include <algorithm>

#include "comm/nccl/nccl_communicator.h"
#include "comm/nccl/nccl_memory.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

class NcclCommFactory final : public CommFactory {
 public:
  NcclCommFactory(CommFactory& host, CudaDevice& device, const NcclOptions& options, Log& log)
      : host_(host),
        device_(device),
        log_(log),
        options_(ParseNcclOptions(ToString(options))) {  // the parser knows what is allowed
    PrepareNcclEnvironment();
  }

  int rank() const noexcept override { return host_.rank(); }
  int world_size() const noexcept override { return host_.world_size(); }

  std::unique_ptr<Communicator> Make(const std::vector<int>& ranks,
                                     const std::string& label) override {
    return MakeNcclCommunicator(host_.Make(ranks, label), device_, label, options_, log_);
  }

  std::unique_ptr<Communicator> MakeSmall(const std::vector<int>& ranks,
                                          const std::string& label) override {
    NcclOptions small = options_;
    small.max_ctas = std::min(small.max_ctas, kSmallCtas);
    small.min_ctas = std::min(small.min_ctas, small.max_ctas);
    return MakeNcclCommunicator(host_.MakeSmall(ranks, label), device_, label, small, log_);
  }

  std::unique_ptr<DeviceBuffer> AllocateArena(Device& device, int64_t bytes,
                                              const std::string& label) override {
    MR_REQUIRE(ErrorCode::kInvalidArgument, &device == &device_,
               "{}: an arena on {}, but this rank's collectives run on GPU {}", label,
               device.name(), device_.ordinal());
    if (!options_.symmetric || host_.world_size() == 1) return device.Allocate(bytes, label);
    return AllocateSymmetric(device_, bytes, label);
  }

  std::string WhyArenaStays() const override {
    if (host_.world_size() == 1) return "";
    return fmt::format(
        "{} GPUs exchange what lies in it, by NCCL or by mapping each other's memory; allowed is a "
        "run of one GPU (all of parallel.* 1)",
        host_.world_size());
  }

 private:
  CommFactory& host_;
  CudaDevice& device_;
  Log& log_;
  const NcclOptions options_;
};

}  // namespace

std::unique_ptr<CommFactory> MakeNcclCommFactory(CommFactory& host, CudaDevice& device,
                                                 const NcclOptions& options, Log& log) {
  return std::make_unique<NcclCommFactory>(host, device, options, log);
}

}  // namespace millrace
