// A kernel that copies a few small ranges: CudaDevice's EnqueueCopies. It reads and writes mapped
// host memory where it lies: a copy engine takes longer to begin than these take in all.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/base/cuda/cuda_mark.h"

namespace millrace::cuda {

inline constexpr int kMostCopies = 32;

struct CopyList {
  struct {
    void* to;
    const void* from;
    int64_t bytes;  // a multiple of 4
  } copies[kMostCopies];
  int count;
  MarkList marks;  // or none
};

// In stream order; in no order among themselves, and with the marks.
void LaunchCopies(const CopyList& list, cudaStream_t stream);

}  // namespace millrace::cuda
