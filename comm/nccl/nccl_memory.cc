#include "comm/nccl/nccl_memory.h"

#include <cuda.h>

#include <algorithm>

#include "comm/nccl/nccl_check.h"
#include "comm/nccl/nccl_options.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/driver_function.h"

namespace millrace {
namespace {

class SymmetricBuffer final : public DeviceBuffer {
 public:
  SymmetricBuffer(CudaDevice& device, int64_t bytes, const std::string& label) : bytes_(bytes) {
    PrepareNcclEnvironment();
    MR_CUDA(cudaSetDevice(device.ordinal()));
    size_t free = 0, total = 0;
    MR_CUDA(cudaMemGetInfo(&free, &total));
    void* data = nullptr;
    const ncclResult_t result =
        ncclMemAlloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    // NCCL has one code for all failures of CUDA.
    MR_REQUIRE(ErrorCode::kOutOfMemory, result == ncclSuccess || free >= static_cast<size_t>(bytes),
               "cannot allocate {} bytes of device memory for {}: {} of {} bytes are free", bytes,
               label, free, total);
    CheckNccl(result, fmt::format("{} bytes of shareable device memory for {}", bytes, label),
              "ncclMemAlloc");
    data_ = static_cast<std::byte*>(data);
  }
  ~SymmetricBuffer() override { static_cast<void>(ncclMemFree(data_)); }
  SymmetricBuffer(const SymmetricBuffer&) = delete;
  SymmetricBuffer& operator=(const SymmetricBuffer&) = delete;
  std::byte* data() const noexcept override { return data_; }
  int64_t bytes() const noexcept override { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  const int64_t bytes_;
};

}  // namespace

std::unique_ptr<DeviceBuffer> AllocateSymmetric(CudaDevice& device, int64_t bytes,
                                                const std::string& label) {
  return std::make_unique<SymmetricBuffer>(device, bytes, label);
}

bool IsShareable(const std::byte* address) {
  auto* const retain = DriverFunction<CUresult(CUmemGenericAllocationHandle*, void*)>(
      "cuMemRetainAllocationHandle", 11000);
  auto* const release =
      DriverFunction<CUresult(CUmemGenericAllocationHandle)>("cuMemRelease", 10020);
  CUmemGenericAllocationHandle handle = 0;
  if (retain(&handle, const_cast<std::byte*>(address)) != CUDA_SUCCESS) return false;
  release(handle);
  return true;
}

}  // namespace millrace
