// A kernel of one thread that writes a few words of mapped host memory: CudaDevice's marks.
//
// A kernel, not a memory operation of the stream: in a chain of small kernels in a graph it takes
// 1.4 us, where cuStreamWriteValue64 takes 4 to 6 (H200, driver 580).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::cuda {

inline constexpr int kMostMarks = 8;

struct MarkList {
  uint64_t* words[kMostMarks];
  uint64_t values[kMostMarks];
  int count;
};

// In stream order: all of `marks`, the last one not before the others are seen. Can be captured.
void LaunchMarks(const MarkList& marks, cudaStream_t stream);

}  // namespace millrace::cuda
