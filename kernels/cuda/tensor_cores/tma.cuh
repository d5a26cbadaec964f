// Barriers in shared memory that count arrivals and bytes (mbarrier), copies of bytes and of boxes
// of a tensor to shared memory that arrive there, and copies to global memory or sums there (TMA).
//
// Phases  A barrier's phase ends when `count` threads have arrived and all bytes that they expect
//         are there. WaitFor(b, parity) returns once the phase of that parity has ended: the first
//         phase has parity 0, so a wait for parity 1 of a new barrier returns at once.
// Order   What a thread wrote before it arrives is seen by those that waited for the phase. What
//         ordinary stores wrote to shared memory reaches tensor cores and copies behind a
//         FenceSharedWrites of the block: by those that wrote, ahead of a barrier, or by those that
//         have it read, behind one. A fence waits for the thread's own stores.
// Source  PTX ISA 9.0, 9.7.13.15 (mbarrier), 9.7.9.25 (cp.async.bulk, cp.reduce.async.bulk),
//         9.7.9.27 (cp.async.bulk.tensor), elect.sync; of fences, Lustig, Cooksey, Giroux,
//         "Mixed-Proxy Extensions for the NVIDIA PTX Memory Consistency Model", ISCA 2022.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace millrace::cuda {

__device__ __forceinline__ void InitBarrier(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(barrier), "r"(count) : "memory");
}
// Makes new barriers known to copies; then a barrier of the block.
__device__ __forceinline__ void FenceNewBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}
__device__ __forceinline__ void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}
__device__ __forceinline__ void ArriveAndExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(barrier), "r"(bytes)
               : "memory");
}
// Once the thread's copies so far (CopyAsync16) are there, without waiting for them.
__device__ __forceinline__ void ArriveBehindCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" : : "r"(barrier) : "memory");
}
__device__ __forceinline__ void WaitFor(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
      "@!ended bra again;\n"
      "}\n"
      :
      : "r"(barrier), "r"(parity)
      : "memory");
}
// Stages in turn, and the parity of the phase that each is in.
struct StageRing {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};
__device__ __forceinline__ void FenceSharedWrites() {
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

// Between accesses to global memory by ordinary instructions and by copies.
__device__ __forceinline__ void FenceGlobalAccess() {
  asm volatile("fence.proxy.async.global;" : : : "memory");
}

// True in one thread of a warp, all of which call it: the one that issues copies. Where another
// condition chooses it, the compiler has a loop around each copy, over all threads that come there.
__device__ __forceinline__ bool IsElected() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

__device__ __forceinline__ void Prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
}
// The box of a tensor of three dims, the first of neighbours, from element (x, y, z) on; zeros
// beyond the tensor. Its bytes arrive at `barrier`, those of zeros too.
__device__ __forceinline__ void CopyBox(uint32_t shared, const CUtensorMap& map, uint32_t barrier,
                                        int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%3, %4, %5}], [%2];"
      :
      : "r"(shared), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// From global memory; it, the place and the bytes are multiples of 16.
__device__ __forceinline__ void CopyBytes(uint32_t shared, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :
      : "r"(shared), "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// ---- to global memory, of which a thread awaits its own

// A box as CopyBox has it, but for what lies beyond the tensor.
__device__ __forceinline__ void StoreBox(const CUtensorMap& map, uint32_t shared, int x, int y,
                                         int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
      :
      : "l"(&map), "r"(shared), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ __forceinline__ void StoreBytes(void* to, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :
               : "l"(to), "r"(shared), "r"(bytes)
               : "memory");
}
// Each float is added by itself and rounded to the nearest; subnormals are 0.
__device__ __forceinline__ void AddFloats(float* to, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
               :
               : "l"(to), "r"(shared), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CommitStores() {
  asm volatile("cp.async.bulk.commit_group;" : : : "memory");
}
// What was committed has been read from shared memory.
__device__ __forceinline__ void WaitForReads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" : : : "memory");
}
// It is in global memory.
__device__ __forceinline__ void WaitForStores() {
  asm volatile("cp.async.bulk.wait_group 0;" : : : "memory");
}

}  // namespace millrace::cuda
