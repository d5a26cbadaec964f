#include <algorithm>

#include "comm/peer/peer_bulk.h"
#include "comm/peer/peer_sum.cuh"
#include "comm/peer/peer_wait.cuh"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace {
namespace {

// Shared memory is a ring of stages, each filled by loads and emptied by stores or sums.
constexpr int kStages = 4, kStageBytes = 16 << 10, kRingBytes = kStages * kStageBytes;
constexpr int kGatherThreads = 32, kReduceThreads = 256;

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// A stage's barrier: completed once for each filling.
__device__ __forceinline__ void InitBarrier(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(SharedAddress(barrier)) : "memory");
}
__device__ __forceinline__ void ExpectBytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(SharedAddress(barrier)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void AwaitFilling(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n"
      :
      : "r"(SharedAddress(barrier)), "r"(parity)
      : "memory");
}
__device__ __forceinline__ void BulkLoad(std::byte* stage, const std::byte* from, uint32_t bytes,
                                         uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(SharedAddress(stage)), "l"(from), "r"(bytes), "r"(SharedAddress(barrier))
               : "memory");
}
__device__ __forceinline__ void BulkStore(std::byte* to, const std::byte* stage, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :
               : "l"(to), "r"(SharedAddress(stage)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CommitStores() { asm volatile("cp.async.bulk.commit_group;" : : : "memory"); }
// Accesses of bulk copies behind this one follow the thread's accesses before it, and the other way round.
__device__ __forceinline__ void FenceBulk() { asm volatile("fence.proxy.async;" : : : "memory"); }

// The chunks of [0, bytes) that this block moves: numbers blockIdx.x, blockIdx.x + gridDim.x, ...
struct Chunks {
  int64_t bytes;  // of all; a multiple of 16
  int chunk;      // bytes of one

  __device__ __forceinline__ int64_t count() const {
    const int64_t all = (bytes + chunk - 1) / chunk;
    return all <= blockIdx.x ? 0 : (all - blockIdx.x + gridDim.x - 1) / gridDim.x;
  }
  __device__ __forceinline__ int64_t begin(int64_t k) const { return (k * gridDim.x + blockIdx.x) * chunk; }
  __device__ __forceinline__ uint32_t size(int64_t k) const {
    const int64_t left = bytes - begin(k);
    return static_cast<uint32_t>(left < chunk ? left : chunk);
  }
};

__device__ __forceinline__ void GatherChunks(const Chunks& chunks, const std::byte* shard,
                                             const PeerSlots& slots, std::byte* ring, uint64_t* full) {
  const int64_t count = chunks.count();
  const auto load = [&](int64_t k) {
    const int stage = static_cast<int>(k % kStages);
    ExpectBytes(&full[stage], chunks.size(k));
    BulkLoad(ring + stage * kStageBytes, shard + chunks.begin(k), chunks.size(k), &full[stage]);
  };
  for (int64_t k = 0; k < kStages - 1 && k < count; ++k) load(k);
  for (int64_t k = 0; k < count; ++k) {
    const int stage = static_cast<int>(k % kStages);
    AwaitFilling(&full[stage], static_cast<uint32_t>(k / kStages % 2));
#pragma unroll
    for (int s = 0; s < kMaxPeers; ++s)
      if (s < slots.count)
        BulkStore(slots.slot[s] + chunks.begin(k), ring + stage * kStageBytes, chunks.size(k));
    CommitStores();
    if (k + kStages - 1 < count) {
      // The stage of the chunk before has been read: all groups but the last.
      asm volatile("cp.async.bulk.wait_group.read 1;" : : : "memory");
      load(k + kStages - 1);
    }
  }
  asm volatile("cp.async.bulk.wait_group 0;" : : : "memory");  // written, not only read
}

__global__ void __launch_bounds__(kGatherThreads)
    BulkGatherKernel(const __grid_constant__ PeerCall call, const std::byte* shard,
                     const __grid_constant__ PeerSlots slots, int64_t bytes, int chunk) {
  extern __shared__ __align__(128) std::byte ring[];
  __shared__ uint64_t full[kStages];
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : full) InitBarrier(&barrier);
    FenceBulk();
  }
  const uint64_t number = EnterCall(call);
  if (number == 0) return;
  const int64_t whole = bytes / 16 * 16;
  if (threadIdx.x == 0) {
    FenceBulk();
    GatherChunks({whole, chunk}, shard, slots, ring, full);
    FenceBulk();
  }
  if (const int64_t i = whole + threadIdx.x; blockIdx.x == 0 && i < bytes)
    for (int k = 0; k < slots.count; ++k) slots.slot[k][i] = shard[i];
  LeaveCall(call, number);
}

// Stage layout: slice r of the chunk at r * chunk.
template <DType D>
__global__ void __launch_bounds__(kReduceThreads)
    BulkReduceKernel(const __grid_constant__ PeerCall call, const __grid_constant__ PeerSlices slices,
                     std::byte* out, int64_t n, int chunk) {
  using Sum = RankSum<D>;
  using One = typename Sum::One;
  extern __shared__ __align__(128) std::byte ring[];
  __shared__ uint64_t full[kStages];
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : full) InitBarrier(&barrier);
    FenceBulk();
  }
  const uint64_t number = EnterCall(call);  // its barriers show the initialised ones to all threads
  if (number == 0) return;
  const Chunks chunks{n / Sum::kPack * 16, chunk};
  const int64_t count = chunks.count();
  const auto load = [&](int64_t k) {
    const int stage = static_cast<int>(k % kStages);
    ExpectBytes(&full[stage], chunks.size(k) * static_cast<uint32_t>(call.world));
    for (int r = 0; r < call.world; ++r)
      BulkLoad(ring + stage * kStageBytes + r * chunk, slices.slice[r] + chunks.begin(k), chunks.size(k),
               &full[stage]);
  };
  if (threadIdx.x == 0) {
    FenceBulk();
    for (int64_t k = 0; k < kStages && k < count; ++k) load(k);
  }
  for (int64_t k = 0; k < count; ++k) {
    const int stage = static_cast<int>(k % kStages);
    AwaitFilling(&full[stage], static_cast<uint32_t>(k / kStages % 2));
    for (uint32_t at = 16 * threadIdx.x; at < chunks.size(k); at += 16 * kReduceThreads) {
      const std::byte* const from = ring + stage * kStageBytes + at;
      Sum sum;
      sum.Begin(*reinterpret_cast<const uint4*>(from));
      for (int r = 1; r < call.world; ++r) sum.AddNext(*reinterpret_cast<const uint4*>(from + r * chunk));
      *reinterpret_cast<uint4*>(out + chunks.begin(k) + at) = sum.Rounded();
    }
    __syncthreads();  // all have read the stage
    if (threadIdx.x == 0 && k + kStages < count) load(k + kStages);
  }
  for (int64_t i = chunks.bytes / 16 * Sum::kPack + threadIdx.x; blockIdx.x == 0 && i < n;
       i += kReduceThreads) {
    typename Sum::Acc acc = Sum::Widen(reinterpret_cast<const volatile One*>(slices.slice[0])[i]);
    for (int r = 1; r < call.world; ++r)
      acc = Sum::Add(acc, Sum::Widen(reinterpret_cast<const volatile One*>(slices.slice[r])[i]));
    reinterpret_cast<One*>(out)[i] = Sum::Round(acc);
  }
  LeaveCall(call, number);
}

// So that every block has a part of few bytes, too.
int ChunkBytes(int64_t bytes, int blocks, int most) {
  const int64_t each = (bytes + blocks - 1) / blocks;
  return static_cast<int>(std::clamp<int64_t>((each + 15) / 16 * 16, 16, most));
}

// A function's limit is the device's, and several may be in one process.
template <class Kernel>
void AllowRing(Kernel kernel) {
  MR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes));
}

}  // namespace

void LaunchBulkGather(const PeerCall& call, const std::byte* shard, const PeerSlots& slots, int64_t bytes,
                      cudaStream_t stream) {
  AllowRing(BulkGatherKernel);
  BulkGatherKernel<<<call.blocks, kGatherThreads, kRingBytes, stream>>>(
      call, shard, slots, bytes, ChunkBytes(bytes, call.blocks, kStageBytes));
  MR_CUDA_LAUNCHED();
}

void LaunchBulkReduce(const PeerCall& call, const PeerSlices& slices, std::byte* out, DType dtype, int64_t n,
                      cudaStream_t stream) {
  const int most = kStageBytes / call.world / 16 * 16;
  const int chunk = ChunkBytes(n * Bytes(dtype), call.blocks, most);
  const auto kernel = dtype == DType::kF32    ? BulkReduceKernel<DType::kF32>
                      : dtype == DType::kBF16 ? BulkReduceKernel<DType::kBF16>
                                              : BulkReduceKernel<DType::kF64>;
  AllowRing(kernel);
  kernel<<<call.blocks, kReduceThreads, kRingBytes, stream>>>(call, slices, out, n, chunk);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace
