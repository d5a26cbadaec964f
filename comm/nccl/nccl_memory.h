// Device memory that NCCL can map into peers: what a symmetric window needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/cuda/cuda_device.h"

namespace millrace {

// `bytes` of the device, rounded up to its allocation granularity (2 MiB), aligned likewise;
// contents undefined. Freed on destruction, which comes after that of every communicator
// that has registered it, or after UnregisterMemory. Error(kOutOfMemory) as
// Device::Allocate, Error(kDevice).
std::unique_ptr<DeviceBuffer> AllocateSymmetric(CudaDevice& device, int64_t bytes,
                                                const std::string& label);

// Whether `address` lies in memory of that kind (CUDA's virtual memory management), as opposed to
// cudaMalloc's.
bool IsShareable(const std::byte* address);

}  // namespace millrace
