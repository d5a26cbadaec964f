#include "runtime/base/cuda/cuda_check.h"

#include "runtime/base/error.h"

namespace millrace::internal {

void ThrowCuda(cudaError_t status, const char* expression, const char* file, int line) {
  // A sticky error stays; one that is not must not surface in somebody else's check.
  cudaGetLastError();
  const ErrorCode code =
      status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kDevice;
  throw Error(code, fmt::format("CUDA: {} ({}) from {} at {}:{}", cudaGetErrorString(status),
                                cudaGetErrorName(status), expression, file, line));
}

}  // namespace millrace::internal
