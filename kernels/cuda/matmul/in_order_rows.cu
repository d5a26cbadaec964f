// A product of few rows, in order: the weight's lines are the rows of wgmma's tiles, and the rows
// its columns, of which it takes as few as eight. A block has some columns of the result and goes
// along the whole depth (few_rows_stages.cuh): a chain of products, each behind the one before,
// which takes 18 cycles a step of sixteen where all operands are there. Lines that nobody writes
// fill the ring while the kernel before runs. Into the second cache they are not asked for: in a
// step of one row of Llama 1B that took 11 % longer, since what was on its way kept copies waiting.
//
// Bits   Which operand has a row does not change what a step of sixteen adds up to: tests/kernels/
//        cuda/in_order_test.cc compares the two kernels of in_order.h bit by bit.
#include "kernels/cuda/matmul/few_rows.cuh"
#include "kernels/cuda/matmul/few_rows_stages.cuh"
#include "kernels/cuda/matmul/in_order.h"
#include "kernels/cuda/tensor_cores/mma.cuh"
#include "kernels/cuda/tensor_cores/tensor_map.h"
#include "kernels/cuda/tensor_cores/tma.cuh"
#include "kernels/cuda/tensor_cores/wgmma.cuh"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// Up to kRows rows by kColumns lines of the weight, in kRoom KiB of shared memory.
template <int kRows_, int kColumns_, int kRoom>
struct RowsShape {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kBoxes = 2;
  static constexpr int kBytesA = kColumns * kLineBytes, kBytesB = kRows * kLineBytes;
  static constexpr int kFitting = (kRoom << 10) / ((kBytesA + kBytesB) * kBoxes);
  static constexpr int kStages = kFitting > 16 ? 16 : kFitting;
};

template <class T>
struct RowsShared {
  StageTiles<T> stages;
  StageBarriers<T> barriers;
  static_assert(sizeof(stages) + sizeof(barriers) <= 227 << 10);  // of a multiprocessor
};

template <class T>
__global__ void __launch_bounds__(kStageThreads)
    InOrderRowsKernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                      const InOrderArgs g) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  RowsShared<T>& s = *reinterpret_cast<RowsShared<T>*>(memory);
  const int first = static_cast<int>(blockIdx.x) * T::kColumns,
            warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp,
            boxes = (g.depth + kBoxDepth - 1) / kBoxDepth;
  if (warp == kWarpgroup / kWarp) {
    const bool elected = IsElected();
    StageCopies<T> copies{s.stages, s.barriers, a, b, first, 0, boxes};
    if (elected) {
      InitStages<T>(s.barriers);
      if (g.constant) copies.BeginLines();
    }
    BeginKernel();
    LetNextBegin();
    __syncthreads();
    if (elected) copies.Run();
    return;
  }
  BeginKernel();
  __syncthreads();
  float sums[T::kRows / 2];
  MultiplyStages<T>(s.stages, s.barriers, sums, boxes);
  // A lane has two rows of a column, and the lane four further on those of the next: one stores a
  // pair of the one row, the other of the other.
  const bool odd = lane / 4 % 2 != 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int line = warp * 16 + half * 8 + lane / 4 - odd, at = first + line;
    const bool inside = line < T::kColumns && at < g.columns;
    const uint32_t bias = g.bias.data == nullptr || !inside ? 0 : *PairAt(g.bias, 0, at);
#pragma unroll
    for (int j = 0; j < T::kRows / 8; ++j) {
      const float zero = sums[4 * j + 2 * half], one = sums[4 * j + 2 * half + 1];
      const float other = __shfl_xor_sync(0xffffffffu, odd ? zero : one, 4);
      const int row = 8 * j + lane % 4 * 2 + odd;
      if (inside && row < g.rows)
        StorePair(g, row, at, odd ? other : zero, odd ? one : other, bias);
    }
  }
#endif  // of other architectures nobody launches it
}

template <class T>
void LaunchShape(const InOrderArgs& g, const Launch& launch) {
  const CUtensorMap a = MapOfBF16(g.b.data, {g.depth, g.columns, 1},
                                  {g.b.stride, g.columns * g.b.stride}, T::kColumns),
                    b = MapOfBF16(g.a.data, {g.depth, g.rows, 1}, {g.a.stride, g.rows * g.a.stride},
                                  T::kRows);
  MR_CUDA(cudaFuncSetAttribute(InOrderRowsKernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(RowsShared<T>)));
  Launch beside = launch;
  beside.one_row = g.rows == 1;
  LaunchKernel(beside, static_cast<unsigned>(CeilDiv(int64_t{g.columns}, T::kColumns)),
               kStageThreads, sizeof(RowsShared<T>), InOrderRowsKernel<T>, a, b, g);
}

// Columns of a block: as few as leave a multiprocessor to each block; two or more blocks to one
// where columns are many. More than 16 rows are most of what a block reads: it has twice as many
// columns then, and one block all of a multiprocessor's memory. By themselves such blocks are
// faster with stages of four boxes, and in a step slower.
template <int kRows>
void LaunchColumns(const InOrderArgs& g, const Launch& launch) {
  if constexpr (kRows <= 16) {
    const auto fits = [&](int64_t columns) { return g.columns <= columns * launch.sms; };
    if (fits(8)) return LaunchShape<RowsShape<kRows, 8, 96>>(g, launch);
    if (fits(16)) return LaunchShape<RowsShape<kRows, 16, 96>>(g, launch);
    if (fits(32)) return LaunchShape<RowsShape<kRows, 32, 96>>(g, launch);
  } else {
    const auto fits = [&](int64_t columns) { return g.columns <= columns * launch.sms * 5 / 8; };
    if (fits(16)) return LaunchShape<RowsShape<kRows, 16, 200>>(g, launch);
    if (fits(32)) return LaunchShape<RowsShape<kRows, 32, 200>>(g, launch);
    if (fits(64)) return LaunchShape<RowsShape<kRows, 64, 200>>(g, launch);
  }
  LaunchShape<RowsShape<kRows, 64, 96>>(g, launch);
}

}  // namespace

void LaunchInOrderRows(const InOrderArgs& args, const Launch& launch) {
  static_assert(kInOrderRows == 64);
  if (args.rows <= 8) return LaunchColumns<8>(args, launch);
  if (args.rows <= 16) return LaunchColumns<16>(args, launch);
  if (args.rows <= 32) return LaunchColumns<32>(args, launch);
  LaunchColumns<64>(args, launch);
}

}  // namespace millrace::cuda
