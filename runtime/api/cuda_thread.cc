// Which GPU a thread of the program uses, and what it waits for.
#include <cuda.h>

#include "runtime/api/backend.h"
#include "runtime/api/memory_to_share.h"
#include "runtime/base/cpu/host_shared_memory.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/cuda/cuda_shared_memory.h"
#include "runtime/base/cuda/driver_function.h"
#include "runtime/base/cuda/gpu_uuid.h"
#include "runtime/base/cuda/gpu_wait.h"

namespace millrace {
namespace {

struct Driver {
  CUresult (*get)(CUcontext*) = nullptr;
  CUresult (*set)(CUcontext) = nullptr;
};

// The runtime's functions would make a context where the thread has none. Null without a driver.
const Driver& TheDriver() noexcept {
  static const Driver driver = [] {
    try {
      return Driver{DriverFunction<CUresult(CUcontext*)>("cuCtxGetCurrent", 4000),
                    DriverFunction<CUresult(CUcontext)>("cuCtxSetCurrent", 4000)};
    } catch (const Error&) {
      return Driver{};
    }
  }();
  return driver;
}

}  // namespace

int OrdinalOf(const Device& device) {
  const auto* const cuda = dynamic_cast<const CudaDevice*>(&device);
  return cuda == nullptr ? 0 : cuda->ordinal();
}

std::string UuidOf(const Device& device) {
  const auto* const cuda = dynamic_cast<const CudaDevice*>(&device);
  return cuda == nullptr ? "" : GpuUuid(cuda->properties());
}

void WaitForAllOf(const Device& device) {
  if (dynamic_cast<const CudaDevice*>(&device) == nullptr) return;
  DeviceOfThread thread;
  thread.Use(device);
  MR_CUDA(WaitForGpu());
}

std::unique_ptr<SharedMemory> MemoryToShare(const Device& device, int64_t bytes,
                                            const std::string& label) {
  if (const auto* const cuda = dynamic_cast<const CudaDevice*>(&device))
    return MakeCudaSharedMemory(cuda->ordinal(), bytes, label);
  return MakeHostSharedMemory(bytes, label);
}

DeviceOfThread::DeviceOfThread() noexcept {
  CUcontext context = nullptr;
  if (TheDriver().get != nullptr && TheDriver().get(&context) == CUDA_SUCCESS) had_ = context;
}

DeviceOfThread::~DeviceOfThread() {
  if (TheDriver().set != nullptr) (void)TheDriver().set(static_cast<CUcontext>(had_));
}

void DeviceOfThread::Use(const Device& device) {
  if (const auto* const cuda = dynamic_cast<const CudaDevice*>(&device))
    MR_CUDA(cudaSetDevice(cuda->ordinal()));
}

}  // namespace millrace
