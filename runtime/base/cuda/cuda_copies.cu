#include <algorithm>

#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/cuda_copies.h"
#include "runtime/base/cuda/cuda_mark.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256;
// A word of host memory takes a microsecond or two to come, and a thread reads one at a time: a
// long copy has so many blocks that each thread has one word of it.
constexpr int64_t kBytesOfBlock = kThreads * sizeof(uint4);
constexpr int64_t kMostBlocksOfCopy = 16;

template <class Word>
__device__ void CopyWords(void* to, const void* from, int64_t bytes) {
  const int64_t words = bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t first = int64_t{kThreads} * blockIdx.y + threadIdx.x,
                step = int64_t{kThreads} * gridDim.y;
  for (int64_t i = first; i < words; i += step)
    static_cast<Word*>(to)[i] = static_cast<const Word*>(from)[i];
}

// Along x the copies, and one block of marks; along y the blocks of a copy.
__global__ void __launch_bounds__(kThreads) CopyAll(const __grid_constant__ CopyList list) {
  if (blockIdx.x == static_cast<unsigned>(list.count)) {
    if (threadIdx.x == 0 && blockIdx.y == 0) Write(list.marks);
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
  int64_t longest = 1;
  for (int i = 0; i < list.count; ++i) longest = std::max(longest, list.copies[i].bytes);
  const dim3 blocks(
      static_cast<unsigned>(list.count + (list.marks.count > 0 ? 1 : 0)),
      static_cast<unsigned>(std::min(CeilDiv(longest, kBytesOfBlock), kMostBlocksOfCopy)));
  CopyAll<<<blocks, kThreads, 0, stream>>>(list);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace::cuda
