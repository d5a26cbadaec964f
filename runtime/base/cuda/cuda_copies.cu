#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/cuda_copies.h"
#include "runtime/base/cuda/cuda_mark.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256;

template <class Word>
__device__ void CopyWords(void* to, const void* from, int64_t bytes) {
  for (int64_t i = threadIdx.x; i < bytes / static_cast<int64_t>(sizeof(Word)); i += kThreads)
    static_cast<Word*>(to)[i] = static_cast<const Word*>(from)[i];
}

// A block to a copy, and one to marks.
__global__ void __launch_bounds__(kThreads) CopyAll(const __grid_constant__ CopyList list) {
  if (blockIdx.x == static_cast<unsigned>(list.count)) {
    if (threadIdx.x == 0) Write(list.marks);
    return;
  }
  const auto& copy = list.copies[blockIdx.x];
  const uint64_t all = reinterpret_cast<uint64_t>(copy.to) | reinterpret_cast<uint64_t>(copy.from) |
                       static_cast<uint64_t>(copy.bytes);
  if (all % sizeof(uint4) == 0)
    CopyWords<uint4>(copy.to, copy.from, copy.bytes);
  else
    CopyWords<uint32_t>(copy.to, copy.from, copy.bytes);
}

}  // namespace

void LaunchCopies(const CopyList& list, cudaStream_t stream) {
  const int blocks = list.count + (list.marks.count > 0 ? 1 : 0);
  CopyAll<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(list);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace::cuda
