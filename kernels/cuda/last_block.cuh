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

}  // namespace millrace::cuda
