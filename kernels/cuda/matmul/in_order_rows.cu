// A product of few rows, in order: the weight's lines are the rows of wgmma's tiles, and the rows
// its columns, of which it takes as few as eight. A block has some columns of the result: their
// lines of the weight, and those of all rows, come through a ring of stages in shared memory, a
// depth of 128 each, by copies of boxes (tensor_cores/tma.cuh) that one warp begins. A warpgroup
// goes along the whole depth: a chain of products, each behind the one before.
//
// Lines  Where a block has fewer than the 64 lines of a tile, wgmma reads on into what lies behind
//        them: those sums are nobody's.
// Bits   Which operand has a row does not change what a step of sixteen adds up to: tests/kernels/
//        cuda/in_order_test.cc compares the two kernels of in_order.h bit by bit.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul/few_rows.cuh"
#include "kernels/cuda/matmul/in_order.h"
#include "kernels/cuda/tensor_cores/mma.cuh"
#include "kernels/cuda/tensor_cores/tensor_map.h"
#include "kernels/cuda/tensor_cores/tma.cuh"
#include "kernels/cuda/tensor_cores/wgmma.cuh"
#include "runtime/base/arithmetic.h"

namespace millrace::cuda {
namespace {

constexpr int kBoxes = 2;  // of a stage
constexpr int kStageDepth = kBoxDepth * kBoxes;
constexpr int kLineBytes = kBoxDepth * 2;
constexpr int kWarpgroup = 128, kThreads = kWarpgroup + kWarp;

// Up to kRows rows by kColumns lines of the weight.
template <int kRows_, int kColumns_>
struct RowsShape {
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr int kBytesA = kColumns * kLineBytes, kBytesB = kRows * kLineBytes;
  // Two blocks to a multiprocessor, of its 227 KiB.
  static constexpr int kStages = (96 << 10) / ((kBytesA + kBytesB) * kBoxes) > 16
                                     ? 16
                                     : (96 << 10) / ((kBytesA + kBytesB) * kBoxes);
  // Behind the last lines, as far as wgmma reads.
  static constexpr int kBehind = (kBoxRows - kColumns) * kLineBytes;
  static_assert(kBytesA % 1024 == 0 && kBytesB % 1024 == 0 &&
                kBehind <= kBytesB * kStages * kBoxes);
};

// Stages of the rows lie behind those of the weight.
template <class T>
struct RowsShared {
  std::byte a[T::kStages][kBoxes][T::kBytesA], b[T::kStages][kBoxes][T::kBytesB];
  uint64_t full[T::kStages], empty[T::kStages];
};

template <class T>
__device__ __forceinline__ void CopyStages(RowsShared<T>& s, const CUtensorMap& a,
                                           const CUtensorMap& b, int column, int depth) {
  StageRing ring;
  for (int k = 0; k < depth; k += kStageDepth) {
    WaitFor(SharedAddress(&s.empty[ring.stage]), ring.parity ^ 1);
    const uint32_t full = SharedAddress(&s.full[ring.stage]);
    // Beyond the depth copies bring zeros, which change no sum.
    ArriveAndExpect(full, kBoxes * (T::kBytesA + T::kBytesB));
    for (int i = 0; i < kBoxes; ++i) {
      CopyBox(SharedAddress(s.a[ring.stage][i]), a, full, k + i * kBoxDepth, column, 0);
      CopyBox(SharedAddress(s.b[ring.stage][i]), b, full, k + i * kBoxDepth, 0, 0);
    }
    ring.Next<T::kStages>();
  }
}

// By the warpgroup: its sums of all stages.
template <class T>
__device__ __forceinline__ void MultiplyStages(RowsShared<T>& s, float (&sums)[T::kRows / 2],
                                               int depth) {
  StageRing ring;
  int before = 0;
  for (int k = 0; k < depth; k += kStageDepth) {
    WaitFor(SharedAddress(&s.full[ring.stage]), ring.parity);
    FenceSums();
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      const uint64_t a = TileDescriptor<Lines::kDepth>(SharedAddress(s.a[ring.stage][i])),
                     b = TileDescriptor<Lines::kDepth>(SharedAddress(s.b[ring.stage][i]));
#pragma unroll
      for (int step = 0; step < kBoxDepth / 16; ++step)
        MultiplyTiles<T::kRows, Lines::kDepth, Lines::kDepth>(
            sums, a + step * kDepthStep<Lines::kDepth>, b + step * kDepthStep<Lines::kDepth>,
            k > 0 || i > 0 || step > 0);
    }
    CommitProducts();
    WaitForProducts<1>();
    if (k > 0 && threadIdx.x % kWarp == 0) Arrive(SharedAddress(&s.empty[before]));
    before = ring.stage;
    ring.Next<T::kStages>();
  }
  WaitForProducts<0>();
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    InOrderRowsKernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                      const InOrderArgs g) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  RowsShared<T>& s = *reinterpret_cast<RowsShared<T>*>(memory);
  const int first = static_cast<int>(blockIdx.x) * T::kColumns,
            warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::kStages; ++i) {
      InitBarrier(SharedAddress(&s.full[i]), 1);
      InitBarrier(SharedAddress(&s.empty[i]), kWarpgroup / kWarp);
    }
    FenceNewBarriers();
  }
  PrefetchLines<kThreads>(g.b, first, min(T::kColumns, g.columns - first), 0, g.depth);
  BeginKernel();
  __syncthreads();
  if (warp == kWarpgroup / kWarp) {
    if (lane == 0) CopyStages<T>(s, a, b, first, g.depth);
    return;
  }
  float sums[T::kRows / 2];
  MultiplyStages<T>(s, sums, g.depth);
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
  // A step that decodes one sequence waits for weights: they are fetched beside the kernel before.
  Launch beside = launch;
  beside.one_row = g.rows == 1;
  if (beside.one_row && launch.early == EarlyLaunch::kEnd) beside.early = EarlyLaunch::kBegin;
  LaunchKernel(beside, static_cast<unsigned>(CeilDiv(int64_t{g.columns}, T::kColumns)), kThreads,
               sizeof(RowsShared<T>), InOrderRowsKernel<T>, a, b, g);
}

// Columns of a block: few where there are few, so that all multiprocessors read weights; more where
// each would read all rows again for little.
template <int kRows>
void LaunchColumns(const InOrderArgs& g, const Launch& launch) {
  const auto fits = [&](int64_t columns) { return g.columns <= columns * launch.sms * 5 / 4; };
  if constexpr (kRows <= 16)
    if (fits(8)) return LaunchShape<RowsShape<kRows, 8>>(g, launch);
  if (fits(kRows <= 16 ? 16 : 8)) return LaunchShape<RowsShape<kRows, 16>>(g, launch);
  if (fits(kRows <= 16 ? 32 : 16)) return LaunchShape<RowsShape<kRows, 32>>(g, launch);
  LaunchShape<RowsShape<kRows, 64>>(g, launch);
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
