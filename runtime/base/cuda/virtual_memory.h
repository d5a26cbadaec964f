// The driver's functions of virtual memory management, looked up when first used: addresses,
// physical memory, and what maps one to the other.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>

namespace millrace {

struct VirtualMemory {
  CUresult (*granularity)(size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags);
  CUresult (*reserve)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long);
  CUresult (*unreserve)(CUdeviceptr, size_t);
  CUresult (*create)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                     unsigned long long);
  CUresult (*release)(CUmemGenericAllocationHandle);
  CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
  CUresult (*unmap)(CUdeviceptr, size_t);
  CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t);
  CUresult (*share)(void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                    unsigned long long);
  CUresult (*attribute)(int*, CUdevice_attribute, CUdevice);
  CUresult (*error_name)(CUresult, const char**);
};

// Error(kDevice): this driver has none.
const VirtualMemory& TheVirtualMemory();

// Error(kDevice) unless `call` has returned success: what, and the driver's word.
void CheckVirtualMemory(CUresult result, const char* call, const std::string& what);

// Physical memory of a GPU; of `shared` there is a file descriptor.
CUmemAllocationProp MemoryOnGpu(int ordinal, bool shared = false);

// `bytes` of it, for `what`. Error(kOutOfMemory) with what is free.
CUmemGenericAllocationHandle CreateMemory(const CUmemAllocationProp& prop, size_t bytes,
                                          const std::string& what);
// Maps it at `at`, to be read and written there. The mapping keeps the memory.
void MapMemory(const CUmemAllocationProp& prop, CUdeviceptr at, size_t bytes,
               CUmemGenericAllocationHandle memory, const std::string& what);

}  // namespace millrace
