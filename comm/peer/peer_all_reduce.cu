#include <cstring>

#include "comm/peer/peer_all_reduce.h"
#include "comm/peer/peer_sum.cuh"
#include "comm/peer/peer_wait.cuh"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace {
namespace {

struct alignas(kPackBytes) Pack {
  uint64_t low, high;
};
static_assert(sizeof(Pack) == kPackBytes && sizeof(uint2) == kPackElementBytes);

__device__ __forceinline__ Pack MakePack(uint2 elements, uint32_t number) {
  const uint64_t above = uint64_t{number} << 32;
  return {above | elements.x, above | elements.y};
}
__device__ __forceinline__ bool IsOf(const Pack& pack, uint32_t number) {
  return pack.low >> 32 == number && pack.high >> 32 == number;
}
__device__ __forceinline__ uint2 ElementsOf(const Pack& pack) {
  return make_uint2(static_cast<uint32_t>(pack.low), static_cast<uint32_t>(pack.high));
}
// By parts: to choose between addresses the compiler would put both into local memory.
__device__ __forceinline__ uint2 Either(bool first, uint2 a, uint2 b) {
  return make_uint2(first ? a.x : b.x, first ? a.y : b.y);
}
__device__ __forceinline__ void Store(Pack* to, const Pack& pack) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};"
               :
               : "l"(to), "l"(pack.low), "l"(pack.high)
               : "memory");
}
__device__ __forceinline__ Pack Load(const Pack* from) {
  Pack pack;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(pack.low), "=l"(pack.high)
               : "l"(from)
               : "memory");
  return pack;
}

// The buffer in units of a pack's elements. kWide: it begins at a multiple of 8 bytes. Behind its
// end there are zeros, which stay.
template <DType D, bool kWide>
struct Elements {
  using Sum = RankSum<D, uint2>;
  using One = typename Sum::One;
  static constexpr int kPack = Sum::kPack;
  One* data;
  int n;

  __host__ __device__ __forceinline__ int units() const { return (n + kPack - 1) / kPack; }
  __device__ __forceinline__ bool Whole(int unit) const { return kWide && (unit + 1) * kPack <= n; }
  __device__ __forceinline__ uint2 Load(int unit) const {
    if (Whole(unit)) return reinterpret_cast<const uint2*>(data)[unit];
    One ones[kPack] = {};
#pragma unroll
    for (int k = 0; k < kPack; ++k)
      if (unit * kPack + k < n) ones[k] = data[unit * kPack + k];
    uint2 raw;
    memcpy(&raw, ones, sizeof raw);
    return raw;
  }
  __device__ __forceinline__ void Store(int unit, uint2 raw) const {
    if (Whole(unit)) {
      reinterpret_cast<uint2*>(data)[unit] = raw;
      return;
    }
    One ones[kPack];
    memcpy(ones, &raw, sizeof raw);
#pragma unroll
    for (int k = 0; k < kPack; ++k)
      if (unit * kPack + k < n) data[unit * kPack + k] = ones[k];
  }
};

// A call as one thread of a block sees it. kRanks >= the ranks of the group, so kRanks - 1 peers at
// most, by their places in rank order; kUnits packs of each are on their way at once.
template <int kRanks, int kUnits>
struct Exchange {
  const PeerCall& call;
  const PeerStaging& staging;
  const uint64_t number;
  // The peer's `entered`, in the first threads of a block, one for each; null: none, or seen.
  const uint64_t* entry = nullptr;
  Pack pack[kUnits][kRanks - 1];

  // Pack i of those that the peer in place `place` of rank `receiver` stores there for this block.
  __device__ __forceinline__ Pack* At(int receiver, int place, int i) const {
    const int slot = static_cast<int>(blockIdx.x) * kPackSlots + static_cast<int>(number % 2);
    return reinterpret_cast<Pack*>(staging.of[receiver]) +
           (slot * (call.world - 1) + place) * staging.room + i;
  }

  __device__ __forceinline__ void Enter() {
    const int peer = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
    if (peer >= call.world || peer == call.rank) return;
    StoreRelaxed(&call.lanes[peer]->blocks[block].entered[call.rank], EntryWord(call, number));
    entry = &call.lanes[call.rank]->blocks[block].entered[peer];
  }

  // This thread's `own` elements to every peer: those of the packs first, first + kPeerThreads, ...
  // of the block's `count`.
  __device__ __forceinline__ void Send(const uint2 (&own)[kUnits], int first, int count) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int i = first + u * kPeerThreads;
      const Pack mine = MakePack(own[u], static_cast<uint32_t>(number));
#pragma unroll
      for (int p = 0; p < kRanks - 1; ++p) {
        const int peer = p + (p >= call.rank ? 1 : 0);
        if (p < call.world - 1 && i < count)
          Store(At(peer, call.rank - (call.rank > peer ? 1 : 0), i), mine);
      }
    }
  }

  // Until these packs of all peers are there, and `entry`. False: told to stop. In place of packs
  // that do not come it looks at the last that does: without branches all loads are in flight.
  __device__ __forceinline__ bool Await(int first, int count) {
    for (uint32_t looks = 1;; ++looks) {
      const uint64_t seen = entry == nullptr ? 0 : LoadRelaxed(entry);
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
#pragma unroll
        for (int p = 0; p < kRanks - 1; ++p)
          pack[u][p] =
              Load(At(call.rank, min(p, call.world - 2), min(first + u * kPeerThreads, count - 1)));
      bool there = true;
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
#pragma unroll
        for (int p = 0; p < kRanks - 1; ++p)
          there = there && IsOf(pack[u][p], static_cast<uint32_t>(number));
      if (seen >> kSignatureBits >= number) {
        if (!IsInThisCall(static_cast<int>(threadIdx.x), seen, call, number)) return false;
        entry = nullptr;
      }
      if ((there && entry == nullptr) || call.fault == PeerFault::kNoEntry) return true;
      if (StopsAt(looks, call)) return false;
    }
  }

  // The addend of rank r: peers behind this rank have a place less.
  __device__ __forceinline__ uint2 Addend(int r, int u, uint2 own) const {
    const uint2 before = ElementsOf(pack[u][r < kRanks - 1 ? r : kRanks - 2]),
                behind = ElementsOf(pack[u][r > 0 ? r - 1 : 0]);
    return Either(r == call.rank, own, Either(r < call.rank, before, behind));
  }

  template <class Sum>
  __device__ __forceinline__ uint2 SumOf(int u, uint2 own) const {
    Sum sum;
    sum.Begin(Addend(0, u, own));
#pragma unroll
    for (int r = 1; r < kRanks; ++r)
      if (r < call.world) sum.AddNext(Addend(r, u, own));
    return sum.Rounded();
  }
};

template <DType D, int kRanks, int kUnits, bool kWide>
__global__ void __launch_bounds__(kPeerThreads, 2)
    AllReduceKernel(const __grid_constant__ PeerCall call,
                    const __grid_constant__ PeerStaging staging,
                    const __grid_constant__ Elements<D, kWide> elements, int each) {
  cuda::BeginKernel();
  cuda::LetNextBegin();
  MarkBegun(call);
  const int begin = static_cast<int>(blockIdx.x) * each,
            count = min(each, elements.units() - begin);
  uint2 own[kUnits];
  const auto load = [&](int first) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int i = first + u * kPeerThreads;
      own[u] = i < count ? elements.Load(begin + i) : uint2{};
    }
  };
  uint64_t* const calls = &call.lanes[call.rank]->calls[blockIdx.x];
  int first = static_cast<int>(threadIdx.x);
  load(first);
  Exchange<kRanks, kUnits> exchange{call, staging, *calls + 1};
  DelayFaulty(call);
  exchange.Enter();
  for (bool go = true; go;) {
    exchange.Send(own, first, count);
    go = exchange.Await(first, count);
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      if (const int i = first + u * kPeerThreads; go && i < count)
        elements.Store(begin + i, exchange.template SumOf<RankSum<D, uint2>>(u, own[u]));
    first += kUnits * kPeerThreads;
    go = go && first < count;
    if (go) load(first);
  }
  __syncthreads();  // all have read the number
  if (threadIdx.x == 0) *calls = exchange.number;
  MarkEnded(call);
}

// The kernel for a pack to a thread at most, or for several.
template <DType D, int kRanks, bool kWide>
auto KernelFor(bool several) {
  return several ? AllReduceKernel<D, kRanks, 8 / kRanks, kWide>
                 : AllReduceKernel<D, kRanks, 1, kWide>;
}

template <DType D, bool kWide>
void Launch(const PeerCall& call, const PeerStaging& staging, std::byte* buffer, int64_t n,
            const cuda::Launch& launch) {
  using Of = Elements<D, kWide>;
  const Of elements{reinterpret_cast<typename Of::One*>(buffer), static_cast<int>(n)};
  const auto each = static_cast<int>(CeilDiv(elements.units(), call.blocks));
  const bool several = each > kPeerThreads;
  const auto kernel = call.world <= 2   ? KernelFor<D, 2, kWide>(several)
                      : call.world <= 4 ? KernelFor<D, 4, kWide>(several)
                                        : KernelFor<D, 8, kWide>(several);
  LaunchKernel(launch, static_cast<unsigned>(call.blocks), kPeerThreads, 0, kernel, call, staging,
               elements, each);
}

template <DType D, bool kWide>
int BlocksOf() {
  return BlocksEach(KernelFor<D, 2, kWide>(false), KernelFor<D, 2, kWide>(true),
                    KernelFor<D, 4, kWide>(false), KernelFor<D, 4, kWide>(true),
                    KernelFor<D, 8, kWide>(false));
}
template <DType D>
int BlocksOf() {
  return std::min(BlocksOf<D, false>(), BlocksOf<D, true>());
}

}  // namespace

int PeerAllReduceBlocksEach() {
  return std::min({BlocksOf<DType::kF32>(), BlocksOf<DType::kBF16>(), BlocksOf<DType::kF16>(),
                   BlocksOf<DType::kF64>()});
}

void LaunchPeerAllReduce(const PeerCall& call, const PeerStaging& staging, std::byte* buffer,
                         DType dtype, int64_t n, const cuda::Launch& launch) {
  const bool wide = reinterpret_cast<uintptr_t>(buffer) % kPackElementBytes == 0;
  if (dtype == DType::kF32)
    wide ? Launch<DType::kF32, true>(call, staging, buffer, n, launch)
         : Launch<DType::kF32, false>(call, staging, buffer, n, launch);
  else if (dtype == DType::kBF16)
    wide ? Launch<DType::kBF16, true>(call, staging, buffer, n, launch)
         : Launch<DType::kBF16, false>(call, staging, buffer, n, launch);
  else if (dtype == DType::kF16)
    wide ? Launch<DType::kF16, true>(call, staging, buffer, n, launch)
         : Launch<DType::kF16, false>(call, staging, buffer, n, launch);
  else
    wide ? Launch<DType::kF64, true>(call, staging, buffer, n, launch)
         : Launch<DType::kF64, false>(call, staging, buffer, n, launch);
}

}  // namespace millrace
