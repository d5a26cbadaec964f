#include "comm/peer/peer_count.cuh"
#include "comm/peer/peer_gather.h"
#include "comm/peer/peer_wait.cuh"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/short_floats.cuh"

namespace millrace {
namespace {

constexpr int kInFlight = 4;  // units that a thread has loaded

// Of all launches on this GPU, in a build that counts.
__device__ unsigned long long stored_bytes;

// What one thread stores. The first `peers` slots lie in other GPUs' memory.
struct Stores {
  const PeerSlots& slots;
  int peers;
  PeerByteCount count{};

  template <class Unit>
  __device__ __forceinline__ void All(int64_t unit, const Unit& value) {
#pragma unroll
    for (int k = 0; k < kMaxPeers; ++k)
      if (k < slots.count) {
        reinterpret_cast<Unit*>(slots.slot[k])[unit] = value;
        if (k < peers) count.Add(sizeof(Unit));
      }
  }

  // The bytes from `begin` on, fewer than there are threads, by one block.
  __device__ __forceinline__ void Tail(const std::byte* shard, int64_t begin, int64_t bytes) {
    const int64_t i = begin + threadIdx.x;
    if (blockIdx.x == 0 && i < bytes) All(i, shard[i]);
  }
};

template <class Unit>
__global__ void __launch_bounds__(kPeerThreads, 2)
    GatherKernel(const __grid_constant__ PeerCall call, const std::byte* __restrict__ shard,
                 const __grid_constant__ PeerSlots slots, int64_t bytes) {
  const uint64_t number = EnterCall(call);
  if (number == 0) return;
  Stores stores{slots, call.world - 1};
  const Unit* const from = reinterpret_cast<const Unit*>(shard);
  const int64_t units = bytes / static_cast<int64_t>(sizeof(Unit));
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kPeerThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPeerThreads + threadIdx.x; i < units;
       i += kInFlight * stride) {
    Unit unit[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u)
      if (i + u * stride < units) unit[u] = from[i + u * stride];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u)
      if (i + u * stride < units) stores.All(i + u * stride, unit[u]);
  }
  stores.Tail(shard, units * static_cast<int64_t>(sizeof(Unit)), bytes);
  stores.count.AddTo(&stored_bytes);
  LeaveCall(call, number);
}

constexpr int kPack = 8;  // elements: 16 bytes of 16 bits each

// To D, a float of 16 bits.
template <DType D, bool kWide>
__global__ void __launch_bounds__(kPeerThreads, 2)
    RoundingGatherKernel(const __grid_constant__ PeerCall call, const float* __restrict__ master,
                         const __grid_constant__ PeerSlots slots, int64_t n) {
  const uint64_t number = EnterCall(call);
  if (number == 0) return;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kPeerThreads;
  Stores stores{slots, call.world - 1};
  const int64_t packs = kWide ? n / kPack : 0;
  const float4* const from = reinterpret_cast<const float4*>(master);
  constexpr int kPacks = 2;  // in flight
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPeerThreads + threadIdx.x; i < packs;
       i += kPacks * stride) {
    float4 low[kPacks], high[kPacks];
#pragma unroll
    for (int u = 0; u < kPacks; ++u)
      if (const int64_t j = i + u * stride; j < packs) {
        low[u] = from[2 * j];
        high[u] = from[2 * j + 1];
      }
#pragma unroll
    for (int u = 0; u < kPacks; ++u)
      if (const int64_t j = i + u * stride; j < packs)
        stores.All(
            j, make_uint4(PairOfShorts<D>(low[u].x, low[u].y), PairOfShorts<D>(low[u].z, low[u].w),
                          PairOfShorts<D>(high[u].x, high[u].y),
                          PairOfShorts<D>(high[u].z, high[u].w)));
  }
  for (int64_t i = packs * kPack + static_cast<int64_t>(blockIdx.x) * kPeerThreads + threadIdx.x;
       i < n; i += stride)
    stores.All(i, static_cast<uint16_t>(PairOfShorts<D>(master[i], 0.0f)));
  stores.count.AddTo(&stored_bytes);
  LeaveCall(call, number);
}

bool Aligned(const void* shard, const PeerSlots& slots, uintptr_t to) {
  uintptr_t all = reinterpret_cast<uintptr_t>(shard);
  for (int k = 0; k < slots.count; ++k) all |= reinterpret_cast<uintptr_t>(slots.slot[k]);
  return all % to == 0;
}

template <DType D>
void LaunchRounding(const PeerCall& call, const float* master, const PeerSlots& slots, int64_t n,
                    cudaStream_t stream) {
  const auto kernel =
      Aligned(master, slots, 16) ? RoundingGatherKernel<D, true> : RoundingGatherKernel<D, false>;
  kernel<<<call.blocks, kPeerThreads, 0, stream>>>(call, master, slots, n);
  MR_CUDA_LAUNCHED();
}

}  // namespace

int PeerGatherBlocksEach() {
  return BlocksEach(
      GatherKernel<uint4>, GatherKernel<uint32_t>, GatherKernel<uint8_t>,
      RoundingGatherKernel<DType::kBF16, true>, RoundingGatherKernel<DType::kBF16, false>,
      RoundingGatherKernel<DType::kF16, true>, RoundingGatherKernel<DType::kF16, false>);
}

std::optional<int64_t> PeerBytesStored() {
  if (!kCountsPeerBytes) return std::nullopt;
  unsigned long long bytes = 0;
  MR_CUDA(cudaDeviceSynchronize());
  MR_CUDA(cudaMemcpyFromSymbol(&bytes, stored_bytes, sizeof(bytes)));
  return static_cast<int64_t>(bytes);
}

void LaunchPeerGather(const PeerCall& call, const std::byte* shard, const PeerSlots& slots,
                      int64_t bytes, cudaStream_t stream) {
  if (Aligned(shard, slots, 16))
    GatherKernel<uint4><<<call.blocks, kPeerThreads, 0, stream>>>(call, shard, slots, bytes);
  else if (Aligned(shard, slots, 4))
    GatherKernel<uint32_t><<<call.blocks, kPeerThreads, 0, stream>>>(call, shard, slots, bytes);
  else
    GatherKernel<uint8_t><<<call.blocks, kPeerThreads, 0, stream>>>(call, shard, slots, bytes);
  MR_CUDA_LAUNCHED();
}

void LaunchPeerRoundingGather(const PeerCall& call, const float* master, DType to,
                              const PeerSlots& slots, int64_t n, cudaStream_t stream) {
  to == DType::kBF16 ? LaunchRounding<DType::kBF16>(call, master, slots, n, stream)
                     : LaunchRounding<DType::kF16>(call, master, slots, n, stream);
}

}  // namespace millrace
