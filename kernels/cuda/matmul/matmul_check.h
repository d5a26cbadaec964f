// Return codes of cuBLASLt as Error(kDevice).
#pragma once

#include <cublasLt.h>

namespace millrace::internal {

[[noreturn]] void ThrowCublas(cublasStatus_t status, const char* expression, const char* file,
                              int line);

}  // namespace millrace::internal

// Throws when the call fails, naming the call and the library's own words.
#define MR_CUBLAS(call)                                                        \
  do {                                                                         \
    const cublasStatus_t mr_status = (call);                                   \
    if (mr_status != CUBLAS_STATUS_SUCCESS) [[unlikely]]                       \
      ::millrace::internal::ThrowCublas(mr_status, #call, __FILE__, __LINE__); \
  } while (false)
