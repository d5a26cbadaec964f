#include "comm/peer/peer_count.cuh"
#include "comm/peer/peer_reduce.h"
#include "comm/peer/peer_sum.cuh"
#include "comm/peer/peer_wait.cuh"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace {
namespace {

// Peers' memory: not kept in L1, where the next call would find it old if it looked there.
__device__ __forceinline__ uint4 LoadPeer(const uint4* from) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
template <class One>
__device__ __forceinline__ One LoadPeer(const One* from) {
  return *const_cast<const volatile One*>(from);
}

// Of all launches on this GPU, in a build that counts.
__device__ unsigned long long loaded_bytes;

// kRanks >= the ranks of the group; kRanks loads of a unit are in flight, and as
// many units as make eight.
template <DType D, int kRanks, bool kWide>
__global__ void __launch_bounds__(kPeerThreads, 2)
    ReduceKernel(const __grid_constant__ PeerCall call, const __grid_constant__ PeerSlices slices,
                 std::byte* out, int64_t n) {
  using Sum = RankSum<D>;
  using One = typename Sum::One;
  const uint64_t number = EnterCall(call);
  if (number == 0) return;
  PeerByteCount count;
  const auto load = [&](int r, const auto* from) {
    if (r != call.rank) count.Add(sizeof(*from));
    return LoadPeer(from);
  };
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kPeerThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kPeerThreads + threadIdx.x;
  const int64_t packs = kWide ? n / Sum::kPack : 0;
  constexpr int kUnits = 8 / kRanks;
  for (int64_t i = first; i < packs; i += kUnits * stride) {
    uint4 raw[kUnits][kRanks];
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int r = 0; r < kRanks; ++r)
        if (r < call.world && i + u * stride < packs)
          raw[u][r] = load(r, reinterpret_cast<const uint4*>(slices.slice[r]) + i + u * stride);
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      if (i + u * stride < packs) {
        Sum sum;
        sum.Begin(raw[u][0]);
#pragma unroll
        for (int r = 1; r < kRanks; ++r)
          if (r < call.world) sum.AddNext(raw[u][r]);
        reinterpret_cast<uint4*>(out)[i + u * stride] = sum.Rounded();
      }
  }
  for (int64_t i = packs * Sum::kPack + first; i < n; i += stride) {
    typename Sum::Acc acc = Sum::Widen(load(0, reinterpret_cast<const One*>(slices.slice[0]) + i));
#pragma unroll
    for (int r = 1; r < kRanks; ++r)
      if (r < call.world)
        acc = Sum::Add(acc, Sum::Widen(load(r, reinterpret_cast<const One*>(slices.slice[r]) + i)));
    reinterpret_cast<One*>(out)[i] = Sum::Round(acc);
  }
  count.AddTo(&loaded_bytes);
  LeaveCall(call, number);
}

template <DType D, bool kWide>
void Launch(const PeerCall& call, const PeerSlices& slices, std::byte* out, int64_t n,
            cudaStream_t stream) {
  const auto kernel = call.world <= 2   ? ReduceKernel<D, 2, kWide>
                      : call.world <= 4 ? ReduceKernel<D, 4, kWide>
                                        : ReduceKernel<D, 8, kWide>;
  kernel<<<call.blocks, kPeerThreads, 0, stream>>>(call, slices, out, n);
  MR_CUDA_LAUNCHED();
}

bool Aligned(const PeerCall& call, const PeerSlices& slices, const std::byte* out) {
  uintptr_t all = reinterpret_cast<uintptr_t>(out);
  for (int r = 0; r < call.world; ++r) all |= reinterpret_cast<uintptr_t>(slices.slice[r]);
  return all % 16 == 0;
}

template <DType D>
int BlocksOf() {
  return BlocksEach(ReduceKernel<D, 2, false>, ReduceKernel<D, 2, true>, ReduceKernel<D, 4, false>,
                    ReduceKernel<D, 4, true>, ReduceKernel<D, 8, false>, ReduceKernel<D, 8, true>);
}

}  // namespace

int PeerReduceBlocksEach() {
  return std::min({BlocksOf<DType::kF32>(), BlocksOf<DType::kBF16>(), BlocksOf<DType::kF16>(),
                   BlocksOf<DType::kF64>()});
}

std::optional<int64_t> PeerBytesLoaded() {
  if (!kCountsPeerBytes) return std::nullopt;
  unsigned long long bytes = 0;
  MR_CUDA(cudaDeviceSynchronize());
  MR_CUDA(cudaMemcpyFromSymbol(&bytes, loaded_bytes, sizeof(bytes)));
  return static_cast<int64_t>(bytes);
}

void LaunchPeerReduce(const PeerCall& call, const PeerSlices& slices, std::byte* out, DType dtype,
                      int64_t n, cudaStream_t stream) {
  const bool wide = Aligned(call, slices, out);
  if (dtype == DType::kF32)
    wide ? Launch<DType::kF32, true>(call, slices, out, n, stream)
         : Launch<DType::kF32, false>(call, slices, out, n, stream);
  else if (dtype == DType::kBF16)
    wide ? Launch<DType::kBF16, true>(call, slices, out, n, stream)
         : Launch<DType::kBF16, false>(call, slices, out, n, stream);
  else if (dtype == DType::kF16)
    wide ? Launch<DType::kF16, true>(call, slices, out, n, stream)
         : Launch<DType::kF16, false>(call, slices, out, n, stream);
  else
    wide ? Launch<DType::kF64, true>(call, slices, out, n, stream)
         : Launch<DType::kF64, false>(call, slices, out, n, stream);
}

}  // namespace millrace
