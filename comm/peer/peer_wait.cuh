// Device side of peer_call.h.
#pragma once

#include <algorithm>

#include "comm/peer/peer_call.h"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace {

// The least of what CUDA's occupancy says of `kernels`, on the current GPU.
template <class... Kernels>
int BlocksEach(Kernels... kernels) {
  int least = kMaxPeerBlocks;
  const auto ask = [&least](auto kernel) {
    int each = 0;
    MR_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kPeerThreads, 0));
    least = std::min(least, each);
  };
  (ask(kernels), ...);
  return least;
}

__device__ __forceinline__ void StoreRelease(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}
__device__ __forceinline__ uint64_t LoadAcquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ uint32_t LoadHost(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// Words that order no other access.
__device__ __forceinline__ void StoreRelaxed(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}
__device__ __forceinline__ uint64_t LoadRelaxed(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ void Write(const PeerMark& mark) {
  *static_cast<volatile uint64_t*>(mark.word) = mark.value;
}
// PeerCall::begun: the block's last thread, which waits for no peer.
__device__ __forceinline__ void MarkBegun(const PeerCall& call) {
  if (call.begun.word != nullptr && blockIdx.x == 0 && threadIdx.x == kPeerThreads - 1)
    Write(call.begun);
}
// PeerCall::ended: every thread of the block, when it waits for nothing more. Behind `begun`, which
// may be the same word.
__device__ __forceinline__ void MarkEnded(const PeerCall& call) {
  if (call.ended.word == nullptr) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint32_t* const left = &call.lanes[call.rank]->left;
  if (gridDim.x > 1) {
    uint32_t before;
    asm volatile("atom.add.acq_rel.sys.global.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(left)
                 : "memory");
    if (before != gridDim.x - 1) return;
    *left = 0;
  }
  Write(call.ended);
}

// Whether a wait ends at its look number `looks`: told to stop. Few look at host memory, which
// takes a microsecond.
__device__ __forceinline__ bool StopsAt(uint32_t looks, const PeerCall& call) {
  constexpr uint32_t kLooks = 4096;
  return looks % kLooks == 0 && LoadHost(call.stop) != 0;
}

// Until *word is of call `number` or a later one. False: told to stop.
__device__ __forceinline__ bool AwaitCall(const uint64_t* word, uint64_t number,
                                          const PeerCall& call, uint64_t* seen) {
  for (uint32_t looks = 1;; ++looks) {
    *seen = LoadAcquire(word);
    if (*seen >> kSignatureBits >= number) return true;
    if (StopsAt(looks, call)) return false;
  }
}

// A rank's `entered` of this call.
__device__ __forceinline__ uint64_t EntryWord(const PeerCall& call, uint64_t number) {
  return number << kSignatureBits | call.signature;
}

// Whether `peer`, whose `entered` is `seen`, of call `number` or a later one, was in this call. If
// not, says so and waits to be told to stop.
__device__ __forceinline__ bool IsInThisCall(int peer, uint64_t seen, const PeerCall& call,
                                             uint64_t number) {
  if (seen >> kSignatureBits != number || seen == EntryWord(call, number)) return true;
  asm volatile("st.relaxed.sys.u32 [%0], %1;" : : "l"(call.strange), "r"(1 + peer) : "memory");
  while (LoadHost(call.stop) == 0) __nanosleep(1000);
  return false;
}

// Of PeerFault: ranks of odd number are slow to move.
__device__ __forceinline__ void DelayFaulty(const PeerCall& call) {
  if (call.fault != PeerFault::kNone && call.rank % 2 == 1)
#pragma unroll 1
    for (int us = 0; us < 30; ++us) __nanosleep(1000);
}

// Steps 1 and 2, in every thread of the block. Returns the number of this call, or 0: told to stop;
// the block then returns at once.
__device__ __forceinline__ uint64_t EnterCall(const PeerCall& call) {
  __shared__ uint64_t shared_number;
  const int block = static_cast<int>(blockIdx.x), peer = static_cast<int>(threadIdx.x);
  PeerLane* const own = call.lanes[call.rank];
  MarkBegun(call);
  if (threadIdx.x == 0) shared_number = own->calls[block] + 1;
  __syncthreads();
  const uint64_t number = shared_number;
  bool go = true;
  if (peer < call.world && peer != call.rank) {
    StoreRelease(&call.lanes[peer]->blocks[block].entered[call.rank], EntryWord(call, number));
    uint64_t seen = 0;
    if (call.fault != PeerFault::kNoEntry)
      go = AwaitCall(&own->blocks[block].entered[peer], number, call, &seen) &&
           IsInThisCall(peer, seen, call, number);
  }
  DelayFaulty(call);
  return __syncthreads_and(go) ? number : 0;
}

// Steps 3's end and 4, in every thread of the block.
__device__ __forceinline__ void LeaveCall(const PeerCall& call, uint64_t number) {
  const int block = static_cast<int>(blockIdx.x), peer = static_cast<int>(threadIdx.x);
  PeerLane* const own = call.lanes[call.rank];
  __syncthreads();
  if (peer < call.world && peer != call.rank) {
    StoreRelease(&call.lanes[peer]->blocks[block].done[call.rank], number << kSignatureBits);
    uint64_t seen = 0;
    if (call.fault != PeerFault::kNoDone)
      AwaitCall(&own->blocks[block].done[peer], number, call, &seen);
  }
  if (threadIdx.x == 0) own->calls[block] = number;
  MarkEnded(call);
}

}  // namespace millrace
