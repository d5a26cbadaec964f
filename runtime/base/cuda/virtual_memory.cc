#include "runtime/base/cuda/virtual_memory.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/driver_function.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

template <class F>
void Find(F*& function, const char* name) {
  function = DriverFunction<F>(name, 10020);
}

}  // namespace

const VirtualMemory& TheVirtualMemory() {
  static const VirtualMemory driver = [] {
    VirtualMemory d{};
    Find(d.granularity, "cuMemGetAllocationGranularity");
    Find(d.reserve, "cuMemAddressReserve");
    Find(d.unreserve, "cuMemAddressFree");
    Find(d.create, "cuMemCreate");
    Find(d.release, "cuMemRelease");
    Find(d.map, "cuMemMap");
    Find(d.unmap, "cuMemUnmap");
    Find(d.set_access, "cuMemSetAccess");
    Find(d.share, "cuMemExportToShareableHandle");
    Find(d.attribute, "cuDeviceGetAttribute");
    Find(d.error_name, "cuGetErrorName");
    return d;
  }();
  return driver;
}

void CheckVirtualMemory(CUresult result, const char* call, const std::string& what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  if (TheVirtualMemory().error_name(result, &name) != CUDA_SUCCESS) name = "an unknown error";
  throw Error(ErrorCode::kDevice, fmt::format("{}: {} of {}", what, name, call));
}

CUmemAllocationProp MemoryOnGpu(int ordinal, bool shared) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = ordinal;
  if (shared) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

CUmemGenericAllocationHandle CreateMemory(const CUmemAllocationProp& prop, size_t bytes,
                                          const std::string& what) {
  CUmemGenericAllocationHandle memory = 0;
  const CUresult created = TheVirtualMemory().create(&memory, bytes, &prop, 0);
  if (created == CUDA_ERROR_OUT_OF_MEMORY) {
    size_t free = 0, total = 0;
    MR_CUDA(cudaMemGetInfo(&free, &total));
    throw Error(ErrorCode::kOutOfMemory,
                fmt::format("cannot allocate {}: {} of {} bytes are free", what, free, total));
  }
  CheckVirtualMemory(created, "cuMemCreate", what);
  return memory;
}

void MapMemory(const CUmemAllocationProp& prop, CUdeviceptr at, size_t bytes,
               CUmemGenericAllocationHandle memory, const std::string& what) {
  const VirtualMemory& driver = TheVirtualMemory();
  CheckVirtualMemory(driver.map(at, bytes, 0, memory, 0), "cuMemMap", what);
  const CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const CUresult allowed = driver.set_access(at, bytes, &access, 1);
  if (allowed != CUDA_SUCCESS) driver.unmap(at, bytes);
  CheckVirtualMemory(allowed, "cuMemSetAccess", what);
}

}  // namespace millrace
