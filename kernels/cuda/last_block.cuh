// Which block of a grid is the last to come here, by a word of tickets.h: it finds what the others
// wrote and can finish the work of all.
#pragma once

#include <cstdint>

namespace millrace::cuda {

// By all threads of all blocks, once a launch. True in the threads of the last block: what thread 0
// of each block wrote before, and what a barrier ordered before that, is visible to them.
__device__ __forceinline__ bool IsLastBlock(unsigned* ticket) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    unsigned before;  // counts to blocks - 1, then to zero
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(ticket)), "r"(gridDim.x - 1)
                 : "memory");
    last = before == gridDim.x - 1;
  }
  __syncthreads();
  return last;
}

// The same with a word of two parts: blocks that are done, and below them what they found. `found`
// counts in thread 0: what this block found, then, in the last block, what all did.
inline constexpr int kFoundBits = 43;

__device__ __forceinline__ bool IsLastBlock(unsigned long long* ticket, unsigned long long& found) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    constexpr unsigned long long kDone = 1ull << kFoundBits;
    unsigned long long before;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(__cvta_generic_to_global(ticket)), "l"(kDone + found)
                 : "memory");
    last = before >> kFoundBits == gridDim.x - 1;
    if (last) found += before & (kDone - 1), *ticket = 0;
  }
  __syncthreads();
  return last;
}

}  // namespace millrace::cuda
