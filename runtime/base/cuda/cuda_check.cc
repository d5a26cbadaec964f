#include "runtime/base/cuda/cuda_check.h"

#include "runtime/base/error.h"

namespace millrace::internal {

void ThrowCuda(cudaError_t status, const char* expression, const char* file, int line) {
  cudaGetLastError();  // a sticky error stays; one that is not must not surface in somebody else's check
  const ErrorCode code =
      status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kDevice;
  throw Error(code, fmt::format("CUDA: {} ({}) from {} at {}:{}", cudaGetErrorString(status),
                                cudaGetErrorName(status), expression, file, line));
}

}  // namespace millrace::internal
