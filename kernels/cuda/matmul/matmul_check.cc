#include "kernels/cuda/matmul/matmul_check.h"

#include "runtime/base/error.h"

namespace millrace::internal {

void ThrowCublas(cublasStatus_t status, const char* expression, const char* file, int line) {
  throw Error(ErrorCode::kDevice,
              fmt::format("cuBLASLt: {} ({}) from {} at {}:{}", cublasLtGetStatusString(status),
                          cublasLtGetStatusName(status), expression, file, line));
}

}  // namespace millrace::internal
