#include "runtime/base/cuda/cuda_shared_memory.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/cuda_pages.h"
#include "runtime/base/cuda/gpu_uuid.h"
#include "runtime/base/cuda/virtual_memory.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

std::string NameOf(int ordinal) {
  cudaDeviceProp properties{};
  MR_CUDA(cudaGetDeviceProperties(&properties, ordinal));
  return GpuUuid(properties);
}

void RequireDescriptors(int ordinal) {
  int supported = 0;
  CheckVirtualMemory(
      TheVirtualMemory().attribute(
          &supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, ordinal),
      "cuDeviceGetAttribute", fmt::format("shared memory of GPU {}", ordinal));
  MR_REQUIRE(ErrorCode::kDevice, supported != 0,
             "GPU {} has no memory that other processes can map by a file descriptor", ordinal);
}

class CudaSharedMemory final : public SharedMemory {
 public:
  CudaSharedMemory(int ordinal, int64_t bytes, const std::string& label)
      : gpu_(NameOf(ordinal)),
        bytes_(RoundUp(std::max<int64_t>(bytes, 1), CudaPageBytes(ordinal))),
        what_(fmt::format("{} bytes of device memory for {}", bytes_, label)) {
    const CUmemAllocationProp prop = MemoryOnGpu(ordinal, true);
    try {
      CheckVirtualMemory(TheVirtualMemory().reserve(&at_, Size(), 0, 0, 0), "cuMemAddressReserve",
                         what_);
      memory_ = CreateMemory(prop, Size(), what_);
      MapMemory(prop, at_, Size(), memory_, what_);
      mapped_ = true;
    } catch (...) {  // no destructor will
      Free();
      throw;
    }
  }
  ~CudaSharedMemory() override { Free(); }
  CudaSharedMemory(const CudaSharedMemory&) = delete;
  CudaSharedMemory& operator=(const CudaSharedMemory&) = delete;
  int64_t bytes() const noexcept override { return bytes_; }
  const std::string& gpu() const noexcept override { return gpu_; }

  std::byte* data() noexcept override { return reinterpret_cast<std::byte*>(at_); }

  int Share() override {
    MR_CHECK(mapped_, "{} are shared twice", what_);
    int descriptor = -1;
    CheckVirtualMemory(
        TheVirtualMemory().share(&descriptor, memory_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle", what_);
    Free();  // the descriptor keeps the memory
    return descriptor;
  }

 private:
  size_t Size() const { return static_cast<size_t>(bytes_); }
  void Free() noexcept {
    const VirtualMemory& driver = TheVirtualMemory();
    if (std::exchange(mapped_, false)) driver.unmap(at_, Size());
    if (memory_ != 0) driver.release(std::exchange(memory_, 0));
    if (at_ != 0) driver.unreserve(std::exchange(at_, 0), Size());
  }

  const std::string gpu_;
  const int64_t bytes_;
  const std::string what_;
  CUdeviceptr at_ = 0;
  CUmemGenericAllocationHandle memory_ = 0;
  bool mapped_ = false;
};

}  // namespace

std::unique_ptr<SharedMemory> MakeCudaSharedMemory(int ordinal, int64_t bytes,
                                                   const std::string& label) {
  MR_CUDA(cudaSetDevice(ordinal));
  RequireDescriptors(ordinal);
  return std::make_unique<CudaSharedMemory>(ordinal, bytes, label);
}

}  // namespace millrace
