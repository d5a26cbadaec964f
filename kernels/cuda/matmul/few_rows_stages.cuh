// The ring through which kernels of few rows on wgmma (few_rows.cuh) take a weight's lines and all
// rows: boxes of the depth come by copies (tensor_cores/tma.cuh) that one thread of a warp begins,
// and a warpgroup multiplies them, each product behind the one before.
//
// T      kRows and kColumns of a block, kBoxes of a stage, kStages; kBytesA and kBytesB, multiples
//        of 1024, of a box of lines and of one of rows.
// Lines  Where a block has fewer than the 64 lines of a tile, wgmma reads on into what lies behind
//        them: those sums are nobody's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/tensor_cores/mma.cuh"
#include "kernels/cuda/tensor_cores/tma.cuh"
#include "kernels/cuda/tensor_cores/wgmma.cuh"

namespace millrace::cuda {

inline constexpr int kStageThreads = kWarpgroup + kWarp;  // of a block

// Stages of the rows lie behind those of the weight, as far as wgmma reads.
template <class T>
struct StageTiles {
  static_assert(T::kBytesA % 1024 == 0 && T::kBytesB % 1024 == 0 &&
                (kBoxRows - T::kColumns) * kLineBytes <= T::kBytesB * T::kStages * T::kBoxes);
  std::byte a[T::kStages][T::kBoxes][T::kBytesA], b[T::kStages][T::kBoxes][T::kBytesB];
};
template <class T>
struct StageBarriers {
  uint64_t full[T::kStages], empty[T::kStages];
};

// By one thread; then a barrier of the block.
template <class T>
__device__ __forceinline__ void InitStages(StageBarriers<T>& s) {
  for (int i = 0; i < T::kStages; ++i) {
    InitBarrier(SharedAddress(&s.full[i]), 1);
    InitBarrier(SharedAddress(&s.empty[i]), kWarpgroup / kWarp);
  }
  FenceNewBarriers();
}

// By the thread that IsElected: boxes [from, to) of the depth, of the weight's lines from `column`
// on. Beyond the depth copies bring zeros, which change no sum.
template <class T>
struct StageCopies {
  StageTiles<T>& s;
  StageBarriers<T>& barriers;
  const CUtensorMap &a, &b;
  int column, from, to;
  int ahead = 0;  // stages whose lines are on their way

  // Of the first stages, as many as there are, the lines alone, while rows may not be read yet. The
  // barriers are this thread's own.
  __device__ __forceinline__ void BeginLines() {
    FenceSharedWrites();  // the copies come ahead of what tells others of the barriers
#pragma unroll 1
    for (int box = from; box < to && ahead < T::kStages; box += T::kBoxes) Lines(ahead++, box);
  }
  __device__ __forceinline__ void Run() {
    StageRing ring;
    for (int box = from; box < to; box += T::kBoxes) {
      if (ahead-- <= 0) {
        WaitFor(SharedAddress(&barriers.empty[ring.stage]), ring.parity ^ 1);
        Lines(ring.stage, box);
      }
#pragma unroll
      for (int i = 0; i < T::kBoxes; ++i)
        CopyBox(SharedAddress(s.b[ring.stage][i]), b, Full(ring.stage), (box + i) * kBoxDepth, 0,
                0);
      ring.Next(T::kStages);
    }
  }

 private:
  __device__ __forceinline__ uint32_t Full(int stage) const {
    return SharedAddress(&barriers.full[stage]);
  }
  __device__ __forceinline__ void Lines(int stage, int box) const {
    ArriveAndExpect(Full(stage), T::kBoxes * (T::kBytesA + T::kBytesB));
#pragma unroll
    for (int i = 0; i < T::kBoxes; ++i)
      CopyBox(SharedAddress(s.a[stage][i]), a, Full(stage), (box + i) * kBoxDepth, column, 0);
  }
};

// By the warpgroup: its sums of that many boxes.
template <class T>
__device__ __forceinline__ void MultiplyStages(StageTiles<T>& s, StageBarriers<T>& barriers,
                                               float (&sums)[T::kRows / 2], int boxes) {
  // Stages under way, so that a chain of products does not wait for what gives a stage back.
  constexpr int kUnderWay = T::kStages > 4 ? 3 : 1;
  StageRing ring, done;
  for (int box = 0; box < boxes; box += T::kBoxes) {
    WaitFor(SharedAddress(&barriers.full[ring.stage]), ring.parity);
    FenceSums();
#pragma unroll
    for (int i = 0; i < T::kBoxes; ++i) {
      const uint64_t a = TileDescriptor<Lines::kDepth>(SharedAddress(s.a[ring.stage][i])),
                     b = TileDescriptor<Lines::kDepth>(SharedAddress(s.b[ring.stage][i]));
#pragma unroll
      for (int step = 0; step < kBoxDepth / 16; ++step)
        MultiplyTiles<T::kRows, Lines::kDepth, Lines::kDepth>(
            sums, a + step * kDepthStep<Lines::kDepth>, b + step * kDepthStep<Lines::kDepth>,
            box > 0 || i > 0 || step > 0);
    }
    CommitProducts();
    WaitForProducts<kUnderWay>();
    if (box >= kUnderWay * T::kBoxes) {
      if (threadIdx.x % kWarp == 0) Arrive(SharedAddress(&barriers.empty[done.stage]));
      done.Next(T::kStages);
    }
    ring.Next(T::kStages);
  }
  WaitForProducts<0>();
}

}  // namespace millrace::cuda
