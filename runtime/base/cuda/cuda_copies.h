// A kernel that copies a few small ranges: CudaDevice's EnqueueCopies. It reads and writes mapped
// host memory where it lies: a copy engine takes longer to begin than these take in all.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::cuda {

inline constexpr int kMostCopies = 32;

struct CopyList {
  struct {
    void* to;
    const void* from;
    int64_t bytes;  // a multiple of 4
  } copies[kMostCopies];
  int count;
};

// In stream order, in no order among themselves.
void LaunchCopies(const CopyList& list, cudaStream_t stream);

}  // namespace millrace::cuda
