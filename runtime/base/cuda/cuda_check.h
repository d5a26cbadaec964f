// Return codes of the CUDA runtime as Error(kDevice), or Error(kOutOfMemory) where memory was
// refused. Free of fmt, so that nvcc can compile every file that includes it.
#pragma once

#include <cuda_runtime_api.h>

namespace millrace::internal {

[[noreturn]] void ThrowCuda(cudaError_t status, const char* expression, const char* file, int line);

}  // namespace millrace::internal

// Throws when the call fails, naming the call and CUDA's own words.
#define MR_CUDA(call)                                                        \
  do {                                                                       \
    const cudaError_t mr_status = (call);                                    \
    if (mr_status != cudaSuccess) [[unlikely]]                               \
      ::millrace::internal::ThrowCuda(mr_status, #call, __FILE__, __LINE__); \
  } while (false)

// After a kernel launch: a bad launch configuration, or an earlier asynchronous fault.
#define MR_CUDA_LAUNCHED() MR_CUDA(cudaGetLastError())
