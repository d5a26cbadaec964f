// A grouped product on Hopper's tensor cores.
//
// Blocks  As many as there are multiprocessors. The first warpgroup's first thread finds tiles and
//         has their operands copied to a ring of stages, a depth of 64 each; each other warpgroup
//         has 64 rows of the tile's sums in registers and stores them. Stages carry what a tile is
//         with them, so that both sides agree.
// Tiles   Of 64 rows for each warpgroup and kTileN columns, in the order of grouped_order.cuh. A
//         block takes the tile of its own number, then whichever is next: which block has a tile
//         changes no bit.
// Edges   Copies bring zeros beyond a tensor, and rows of the expert behind where an expert ends in
//         a tile: as rows of the product they are not stored; along the depth they are set to zero
//         up to the next multiple of 16, and what lies behind is not multiplied. Warpgroups
//         without rows do not multiply.
#pragma once

#include "kernels/cuda/moe/grouped_stages.cuh"
#include "kernels/cuda/moe/grouped_store.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {

// Sets lines of a stage's depth to zero, by all warpgroups that multiply. They come here from two
// places, those that have rows and those that have none, which synccheck takes for a fault at a
// barrier of threads: hence one in memory.
template <class T>
__device__ __forceinline__ void ClearDepth(std::byte* stage, int from, int to, uint32_t cleared,
                                           uint32_t parity) {
  static_assert(T::a == Lines::kRows && T::b == Lines::kRows);
  constexpr int kChunks = (T::kGroups + T::kBoxesB) * 8, kWorkers = T::kGroups * kWarpgroup;
  for (int i = static_cast<int>(threadIdx.x) - kWarpgroup; i < (to - from) * kChunks;
       i += kWorkers) {
    const int line = from + i / kChunks, box = i % kChunks / 8, chunk = i % 8;
    *reinterpret_cast<uint4*>(stage + box * kBoxBytes + line * 128 + chunk * 16) = uint4{};
  }
  FenceSharedWrites();
  __syncwarp();
  if (threadIdx.x % kWarp == 0) Arrive(cleared);
  WaitFor(cleared, parity);
}

// A warpgroup that multiplies: its sums, and where it is in the ring.
template <class T>
class Multiplier {
 public:
  __device__ explicit Multiplier(WgmmaShared<T>& shared)
      : s_(shared),
        group_(static_cast<int>(threadIdx.x) / kWarpgroup - 1),
        warp_(static_cast<int>(threadIdx.x) % kWarpgroup / kWarp) {}

  __device__ __forceinline__ void Run(const GroupedArgs& g) {
    for (;;) {
      Wait();
      const StagedTile t = s_.tiles[ring_.stage];
      if (t.rows < 0) return;
      if (group_ * kBoxRows < t.rows) {
        const ResultRows<T::kTileN> rows(g, t, T::slots, group_ * kBoxRows + warp_ * 16);
        rows.Prefetch();
        Product<true>(t.depth);
        if constexpr (T::kOne)
          if (g.bias != nullptr) rows.AddBias(sums_, t.n0);
        rows.Store(sums_);
      } else {
        Product<false>(t.depth);
      }
    }
  }

 private:
  __device__ __forceinline__ void Wait() {
    WaitFor(SharedAddress(&s_.full[ring_.stage]), ring_.parity);
  }
  __device__ __forceinline__ void Release(uint32_t stage) {
    if (threadIdx.x % kWarp == 0) Arrive(SharedAddress(&s_.empty[stage]));
  }

  static constexpr int kStep = 16;  // of the depth, by one instruction

  // The sums of one tile, whose first stage is there; all its stages are released. !kBusy: only
  // what the other warpgroups need of this one. Without depth there is one stage, of which
  // one step is cleared.
  template <bool kBusy>
  __device__ __forceinline__ void Product(int depth) {
    uint32_t before = 0;
    for (int k = 0; k == 0 || k < depth; k += kBoxDepth) {
      const int left = depth - k, steps = max(1, (left + kStep - 1) / kStep);
      if (k > 0) Wait();
      if constexpr (T::slots == Slots::kDepth)
        if (left < kBoxDepth && left < steps * kStep) {
          ClearDepth<T>(s_.stages[ring_.stage], left, steps * kStep, SharedAddress(&s_.cleared),
                        cleared_);
          cleared_ ^= 1;
        }
      if constexpr (kBusy) {
        // Of rows few depths end within a stage, and with code for each end the compiler has all
        // products wait for each other (ptxas C7520): 12 % more time.
        if constexpr (T::slots == Slots::kDepth)
          Multiply(steps, k > 0);
        else
          MultiplySteps<kBoxDepth / kStep>(k > 0);
        WaitForProducts<1>();
      }
      if (k > 0) Release(before);
      before = ring_.stage;
      ring_.Next(T::kStages);
    }
    if constexpr (kBusy) WaitForProducts<0>();
    Release(before);
  }

  // So many steps of the stage's depth, all if there are more. Each number has code of its own: in
  // a loop of unknown length the compiler has every product wait for the one before.
  __device__ __forceinline__ void Multiply(int steps, bool add) {
    static_assert(kBoxDepth / kStep == 4);
    if (steps >= 4)
      MultiplySteps<4>(add);
    else if (steps == 3)
      MultiplySteps<3>(add);
    else if (steps == 2)
      MultiplySteps<2>(add);
    else
      MultiplySteps<1>(add);
  }
  template <int kSteps>
  __device__ __forceinline__ void MultiplySteps(bool add) {
    FenceSums();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) MultiplyStep(step, add || step > 0);
    CommitProducts();
  }
  __device__ __forceinline__ void MultiplyStep(int step, bool add) {
    const uint32_t stage = SharedAddress(s_.stages[ring_.stage]);
    MultiplyTiles<T::kTileN, T::a, T::b>(
        sums_, TileDescriptor<T::a>(stage + group_ * kBoxBytes) + step * kDepthStep<T::a>,
        TileDescriptor<T::b>(stage + T::kBytesA) + step * kDepthStep<T::b>, add);
  }

  WgmmaShared<T>& s_;
  const int group_, warp_;
  StageRing ring_;
  uint32_t cleared_ = 0;  // the parity of s_.cleared
  float sums_[T::kTileN / 2];
};

// Whether this thread of the first warpgroup copies. Of weight gradients one that the warp elects:
// then no copy is a loop (IsElected). Of rows that has not been timed by itself.
template <class T>
__device__ __forceinline__ bool IsCopier() {
  if constexpr (T::slots == Slots::kDepth)
    return __shfl_sync(0xffffffffu, threadIdx.x / kWarp, 0) == 0 && IsElected();
  return threadIdx.x == 0;
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    GroupedWgmmaKernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                       const GroupedArgs g, unsigned* ticket) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  BeginKernel();
  WgmmaShared<T>& s = *reinterpret_cast<WgmmaShared<T>*>(memory);
  if (threadIdx.x == 0) {
    Prefetch(a);
    Prefetch(b);
    for (int i = 0; i < T::kStages; ++i) {
      InitBarrier(SharedAddress(&s.full[i]), 1);
      InitBarrier(SharedAddress(&s.empty[i]), T::kGroups * kWarpgroup / kWarp);
    }
    InitBarrier(SharedAddress(&s.cleared), T::kGroups * kWarpgroup / kWarp);
    FenceNewBarriers();
  }
  const int tiles = OrderTiles<T::slots, T::kTileM, T::kTileN, T::kOne>(g, s.list);
  if (threadIdx.x < kWarpgroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(T::kFewRegisters));
    if (IsCopier<T>()) {
      Copier<T> copier(s, a, b);
      for (int tile = static_cast<int>(blockIdx.x); tile < tiles;) {
        const int next = TakeTicket(ticket);  // on its way while this tile is copied
        copier.Tile(g, PlaceOf<T>(g, s.list, tile));
        tile = next;
      }
      copier.End();
      ReturnTickets(ticket);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(T::kManyRegisters));
    Multiplier<T>(s).Run(g);
  }
#endif  // of other architectures nobody launches it
}

}  // namespace millrace::cuda
