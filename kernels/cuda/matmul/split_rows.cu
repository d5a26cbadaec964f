// A product of few rows by a weight of few columns, as a step that decodes many sequences has them:
// a tile of columns would take one multiprocessor as long as its depth takes to be read, and most
// of the others would have none. A cluster's blocks each have a part of the depth; then each adds
// the sums of all, in their order, for some of the rows.
//
// Lines  A block has half of the 64 lines of a wgmma tile, so that twice as many multiprocessors
//        read.
#include <cooperative_groups.h>

#include "kernels/cuda/matmul/few_rows.cuh"
#include "kernels/cuda/matmul/few_rows.h"
#include "kernels/cuda/matmul/few_rows_stages.cuh"
#include "kernels/cuda/tensor_cores/mma.cuh"
#include "kernels/cuda/tensor_cores/tensor_map.h"
#include "kernels/cuda/tensor_cores/tma.cuh"
#include "kernels/cuda/tensor_cores/wgmma.cuh"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// Up to kRows rows by kColumns lines of the weight; a stage is a box of each.
template <int kRows_>
struct SplitShape {
  static constexpr int kRows = kRows_, kColumns = 32, kBoxes = 1;
  static constexpr int kBytesA = kColumns * kLineBytes, kBytesB = kRows * kLineBytes;
  static constexpr int kStages = 8;             // 96 KiB at most: two blocks to a multiprocessor
  static constexpr int kStride = kColumns + 4;  // of sums: lanes of a warp write other banks
};

template <class T>
struct SplitShared {
  union {
    StageTiles<T> stages;
    float sums[T::kRows][T::kStride];  // once all stages have been multiplied
  };
  StageBarriers<T> barriers;
};

template <class T, int kSplits>
__global__ void __cluster_dims__(kSplits) __launch_bounds__(kStageThreads)
    SplitRowsKernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                    const FewRowsArgs g) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  SplitShared<T>& s = *reinterpret_cast<SplitShared<T>*>(memory);
  const auto cluster = cooperative_groups::this_cluster();
  const int first = static_cast<int>(blockIdx.x) / kSplits * T::kColumns,
            split = static_cast<int>(blockIdx.x) % kSplits,
            boxes = (g.depth + kBoxDepth - 1) / kBoxDepth, from = boxes * split / kSplits,
            to = boxes * (split + 1) / kSplits, warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  if (threadIdx.x == 0) InitStages<T>(s.barriers);
  PrefetchLines<kStageThreads>(g.b, first, min(T::kColumns, g.columns - first), from * kBoxDepth,
                               min(to * kBoxDepth, g.depth));
  BeginKernel();
  __syncthreads();
  float sums[T::kRows / 2];
  if (warp < kWarpgroup / kWarp)
    MultiplyStages<T>(s.stages, s.barriers, sums, to - from);
  else if (IsElected())
    StageCopies<T>{s.stages, s.barriers, a, b, first, from, to}.Run();
  __syncthreads();
  if (warp < kWarpgroup / kWarp)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = warp * 16 + half * 8 + lane / 4;
      if (line < T::kColumns)
#pragma unroll
        for (int j = 0; j < T::kRows / 8; ++j)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            s.sums[8 * j + lane % 4 * 2 + i][line] = sums[4 * j + 2 * half + i];
    }
  cluster.sync();
  constexpr int kOwnRows = T::kRows / kSplits, kPairs = T::kColumns / 2;
  for (int i = static_cast<int>(threadIdx.x); i < kOwnRows * kPairs; i += kStageThreads) {
    const int row = split * kOwnRows + i / kPairs, line = i % kPairs * 2, at = first + line;
    if (row >= g.rows || at >= g.columns) continue;
    const uint32_t bias = g.bias.data == nullptr ? 0 : *PairAt(g.bias, 0, at);
    float2 part[kSplits];
#pragma unroll
    for (int p = 0; p < kSplits; ++p)
      part[p] = *reinterpret_cast<const float2*>(cluster.map_shared_rank(&s.sums[row][line], p));
#pragma unroll
    for (int p = 1; p < kSplits; ++p) {
      part[0].x = __fadd_rn(part[0].x, part[p].x);
      part[0].y = __fadd_rn(part[0].y, part[p].y);
    }
    StorePair(g, row, at, part[0].x, part[0].y, bias);
  }
  cluster.sync();  // all have read this block's sums
#endif             // of other architectures nobody launches it
}

// How many blocks a tile's depth is dealt out to: eight, where all of these have a place at once;
// two where more tiles have little depth, as a kernel that begins early is worth more in a step
// than what it takes by itself. 0: not at all, a library's kernel is faster.
int SplitsOf(int64_t columns, int64_t depth, int sms) {
  constexpr int64_t kLittle = 8;  // boxes of a block
  const int64_t boxes = CeilDiv(depth, int64_t{kBoxDepth}),
                tiles = CeilDiv(columns, int64_t{SplitShape<kSplitRows>::kColumns});
  // Two blocks to a multiprocessor, of which clusters of eight do not come to fill all.
  if (tiles * 8 * 5 / 4 <= 2 * int64_t{sms}) return boxes >= 8 ? 8 : boxes >= 4 ? 4 : 0;
  return tiles * 2 * 4 / 3 <= 2 * int64_t{sms} && boxes >= 2 && boxes <= 2 * kLittle ? 2 : 0;
}

template <class T, int kSplits>
void LaunchShape(const FewRowsArgs& g, const Launch& launch) {
  const CUtensorMap a = MapOfBF16(g.b.data, {g.depth, g.columns, 1},
                                  {g.b.stride, g.columns * g.b.stride}, T::kColumns),
                    b = MapOfBF16(g.a.data, {g.depth, g.rows, 1}, {g.a.stride, g.rows * g.a.stride},
                                  T::kRows);
  MR_CUDA(cudaFuncSetAttribute(SplitRowsKernel<T, kSplits>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(SplitShared<T>)));
  const auto tiles = static_cast<unsigned>(CeilDiv(g.columns, T::kColumns));
  // Few blocks, which have weights to fetch beside the kernel before.
  Launch beside = launch;
  if (launch.early == EarlyLaunch::kEnd) beside.early = EarlyLaunch::kBegin;
  LaunchKernel(beside, tiles * kSplits, kStageThreads, sizeof(SplitShared<T>),
               SplitRowsKernel<T, kSplits>, a, b, g);
}

template <int kRows>
void LaunchBlocks(const FewRowsArgs& g, int blocks, const Launch& launch) {
  if (blocks == 8) return LaunchShape<SplitShape<kRows>, 8>(g, launch);
  if (blocks == 4) return LaunchShape<SplitShape<kRows>, 4>(g, launch);
  LaunchShape<SplitShape<kRows>, 2>(g, launch);
}

}  // namespace

bool SplitsRows(int64_t rows, int64_t columns, int64_t depth, int sms) {
  return rows > 0 && rows <= kSplitRows && columns > 0 && columns % kPack == 0 && depth > 0 &&
         depth % kPack == 0 && SplitsOf(columns, depth, sms) > 0;
}

void LaunchSplitRows(const FewRowsArgs& args, const Launch& launch) {
  const int blocks = SplitsOf(args.columns, args.depth, launch.sms);
  constexpr int kFew = 16;
  if (args.rows <= kFew)
    LaunchBlocks<kFew>(args, blocks, launch);
  else
    LaunchBlocks<kSplitRows>(args, blocks, launch);
}

}  // namespace millrace::cuda
