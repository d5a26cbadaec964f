// A product of few rows, in order. A block has some columns: their lines of the weight, and those
// of all rows, come through a ring of stages in shared memory, a depth of 128 each, by copies of
// boxes (tensor_cores/tma.cuh) that one warp begins. The others have a tile of sums each and go
// along the whole depth: nothing but a longer chain of products is lost by that, and chains run
// beside each other.
//
// Bits   mma.sync adds the products of a step of sixteen as wgmma does: tests/kernels/cuda/
//        in_order_test.cc compares the two kernels of in_order.h bit by bit.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul/in_order.h"
#include "kernels/cuda/tensor_cores/mma.cuh"
#include "kernels/cuda/tensor_cores/tensor_map.h"
#include "kernels/cuda/tensor_cores/tma.cuh"
#include "runtime/base/arithmetic.h"

namespace millrace::cuda {
namespace {

constexpr int kBox = 64;   // of the depth, 128 bytes: as far as a swizzle reaches
constexpr int kBoxes = 2;  // of a stage
constexpr int kStageDepth = kBox * kBoxes;
constexpr int kLineBytes = kBox * 2;

// kRowWarps x kColumnWarps warps multiply, each kRowTiles tiles of 16 rows by kColumnTiles tiles of
// 8 columns.
template <int kRowTiles_, int kRowWarps_, int kColumnTiles_, int kColumnWarps_, int kStages_>
struct RowsShape {
  static constexpr int kRowTiles = kRowTiles_, kRowWarps = kRowWarps_, kColumnTiles = kColumnTiles_,
                       kColumnWarps = kColumnWarps_, kStages = kStages_;
  static constexpr int kRows = 16 * kRowTiles * kRowWarps,
                       kColumns = 8 * kColumnTiles * kColumnWarps,
                       kWarps = kRowWarps * kColumnWarps, kThreads = (kWarps + 1) * kWarp;
  static constexpr int kBoxBytesA = kRows * kLineBytes, kBoxBytesB = kColumns * kLineBytes;
  static_assert(kBoxBytesA % 1024 == 0 && kBoxBytesB % 1024 == 0);
};

template <class T>
struct RowsShared {
  std::byte a[T::kStages][kBoxes][T::kBoxBytesA], b[T::kStages][kBoxes][T::kBoxBytesB];
  uint64_t full[T::kStages], empty[T::kStages];
};

// 16 bytes of a line of a box, as TMA's swizzle lays them.
__device__ __forceinline__ uint32_t ChunkAt(uint32_t box, int line, int chunk) {
  return box + static_cast<uint32_t>(line * kLineBytes + ((chunk ^ (line % 8)) * 16));
}

template <class T>
__device__ __forceinline__ void CopyStages(RowsShared<T>& s, const CUtensorMap& a,
                                           const CUtensorMap& b, int column, int depth) {
  int stage = 0;
  uint32_t parity = 0;
  for (int k = 0; k < depth; k += kStageDepth) {
    WaitFor(SharedAddress(&s.empty[stage]), parity ^ 1);
    const uint32_t full = SharedAddress(&s.full[stage]);
    const int boxes = min(kBoxes, (depth - k + kBox - 1) / kBox);
    ArriveAndExpect(full, static_cast<uint32_t>(boxes * (T::kBoxBytesA + T::kBoxBytesB)));
    for (int i = 0; i < boxes; ++i) {
      CopyBox(SharedAddress(s.b[stage][i]), b, full, k + i * kBox, column, 0);
      CopyBox(SharedAddress(s.a[stage][i]), a, full, k + i * kBox, 0, 0);
    }
    if (++stage == T::kStages) stage = 0, parity ^= 1;
  }
}

template <class T>
using RowsSums = float[T::kRowTiles][T::kColumnTiles][4];

// A warp's operands of one box, in registers: those of a box come while the one ahead multiplies.
template <class T>
struct Fragments {
  static constexpr int kSteps = kBox / 16;
  // Of columns: both steps of a depth of 32 for a lone tile, or a step for two tiles.
  static constexpr int kLoads = T::kColumnTiles == 1 ? kSteps / 2 : kSteps * T::kColumnTiles / 2;
  uint32_t rows[kSteps][T::kRowTiles][4], columns[kLoads][4];

  __device__ __forceinline__ void Load(uint32_t a, uint32_t b, int row, int column) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if constexpr (T::kColumnTiles == 1) {
#pragma unroll
      for (int pair = 0; pair < kLoads; ++pair)
        LoadMatrices(columns[pair], ChunkAt(b, column + lane % 8, pair * 4 + lane / 8));
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int m = 0; m < T::kRowTiles; ++m)
        LoadMatrices(rows[step][m], ChunkAt(a, row + m * 16 + lane % 16, step * 2 + lane / 16));
      if constexpr (T::kColumnTiles > 1)
#pragma unroll
        for (int n = 0; n < T::kColumnTiles / 2; ++n)
          LoadMatrices(
              columns[step * T::kColumnTiles / 2 + n],
              ChunkAt(b, column + n * 16 + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
    }
  }

  __device__ __forceinline__ void Multiply(RowsSums<T>& sums) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int n = 0; n < T::kColumnTiles; ++n) {
        const bool alone = T::kColumnTiles == 1;
        const auto& of = columns[alone ? step / 2 : (step * T::kColumnTiles + n) / 2];
        const int half = 2 * (alone ? step % 2 : n % 2);
#pragma unroll
        for (int m = 0; m < T::kRowTiles; ++m)
          Mma(sums[m][n], rows[step][m], of[half], of[half + 1]);
      }
  }
};

__device__ __forceinline__ uint32_t* PairAt(const Rows& rows, int row, int column) {
  return reinterpret_cast<uint32_t*>(reinterpret_cast<uint16_t*>(rows.data) + row * rows.stride +
                                     column);
}
__device__ __forceinline__ float LowOf(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float HighOf(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// Two neighbours of a row.
__device__ __forceinline__ void StorePair(const InOrderArgs& g, int row, int column, float low,
                                          float high, uint32_t bias) {
  if (g.bias.data != nullptr)
    low = __fadd_rn(low, LowOf(bias)), high = __fadd_rn(high, HighOf(bias));
  uint32_t pair = PairOfBF16(low, high);
  if (g.gelu) {
    // As an activation that reads the stored value (elementwise/activation.cu).
    if (g.pre.data != nullptr) *PairAt(g.pre, row, column) = pair;
    pair = PairOfBF16(Activate<ActivationKind::kGelu>(LowOf(pair), 0.0f),
                      Activate<ActivationKind::kGelu>(HighOf(pair), 0.0f));
  }
  *PairAt(g.out, row, column) = pair;
}

template <class T>
__global__ void __launch_bounds__(T::kThreads)
    InOrderRowsKernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                      const InOrderArgs g) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) std::byte memory[];
  RowsShared<T>& s = *reinterpret_cast<RowsShared<T>*>(memory);
  const int first = static_cast<int>(blockIdx.x) * T::kColumns,
            warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::kStages; ++i) {
      InitBarrier(SharedAddress(&s.full[i]), 1);
      InitBarrier(SharedAddress(&s.empty[i]), T::kWarps);
    }
    FenceNewBarriers();
  }
  // Into the second cache, where whoever writes weights meanwhile would find them: this is no
  // access to memory in the sense of BeginKernel.
  constexpr int kCacheLine = 64;  // elements
  const int lines = (g.depth + kCacheLine - 1) / kCacheLine,
            count = min(T::kColumns, g.columns - first) * lines;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += T::kThreads)
    asm volatile("prefetch.global.L2 [%0];"
                 :
                 : "l"(reinterpret_cast<const uint16_t*>(g.b.data) +
                       (first + i / lines) * g.b.stride + i % lines * kCacheLine));
  BeginKernel();
  __syncthreads();
  if (warp == T::kWarps) {
    if (lane == 0) CopyStages<T>(s, a, b, first, g.depth);
    return;
  }
  const int row = warp / T::kColumnWarps * T::kRowTiles * 16,
            column = warp % T::kColumnWarps * T::kColumnTiles * 8;
  RowsSums<T> sums = {};
  Fragments<T> box[kBoxes];
  int stage = 0;
  uint32_t parity = 0;
  const auto load = [&](int i) {
    box[i].Load(SharedAddress(s.a[stage][i]), SharedAddress(s.b[stage][i]), row, column);
  };
  WaitFor(SharedAddress(&s.full[0]), 0);
  load(0);
  static_assert(kBoxes == 2);
  for (int k = 0; k < g.depth; k += kStageDepth) {
    const bool two = k + kBox < g.depth, more = k + kStageDepth < g.depth;
    if (two) load(1);
    __syncwarp();
    if (lane == 0) Arrive(SharedAddress(&s.empty[stage]));
    if (++stage == T::kStages) stage = 0, parity ^= 1;
    box[0].Multiply(sums);
    if (more) {
      WaitFor(SharedAddress(&s.full[stage]), parity);
      load(0);
    }
    if (two) box[1].Multiply(sums);
  }
#pragma unroll
  for (int n = 0; n < T::kColumnTiles; ++n) {
    const int at = first + column + n * 8 + lane % 4 * 2;
    if (at >= g.columns) continue;
    const uint32_t bias = g.bias.data == nullptr ? 0 : *PairAt(g.bias, 0, at);
#pragma unroll
    for (int m = 0; m < T::kRowTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = row + m * 16 + half * 8 + lane / 4;
        if (r < g.rows) StorePair(g, r, at, sums[m][n][2 * half], sums[m][n][2 * half + 1], bias);
      }
  }
#endif  // of other architectures nobody launches it
}

template <class T>
void LaunchShape(const InOrderArgs& g, const Launch& launch) {
  const CUtensorMap a = MapOfBF16(g.a.data, {g.depth, g.rows, 1}, {g.a.stride, g.rows * g.a.stride},
                                  T::kRows),
                    b = MapOfBF16(g.b.data, {g.depth, g.columns, 1},
                                  {g.b.stride, g.columns * g.b.stride}, T::kColumns);
  MR_CUDA(cudaFuncSetAttribute(InOrderRowsKernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(RowsShared<T>)));
  // A step that decodes few sequences waits for weights: they are fetched beside the kernel before.
  Launch beside = launch;
  if (g.rows == 1 && launch.early == EarlyLaunch::kEnd) beside.early = EarlyLaunch::kBegin;
  LaunchKernel(beside, static_cast<unsigned>(CeilDiv(int64_t{g.columns}, T::kColumns)), T::kThreads,
               sizeof(RowsShared<T>), InOrderRowsKernel<T>, a, b, g);
}

// Columns of a block: few where there are few, so that all multiprocessors read weights; more where
// each would read all rows again for little.
template <int kRowTiles, int kRowWarps>
void LaunchColumns(const InOrderArgs& g, const Launch& launch) {
  const int64_t eights = g.columns / 8, blocks = 2 * int64_t{launch.sms};
  if constexpr (kRowTiles * kRowWarps == 1) {
    if (eights <= blocks) return LaunchShape<RowsShape<1, 1, 1, 1, 12>>(g, launch);
    if (eights <= 2 * blocks) return LaunchShape<RowsShape<1, 1, 2, 1, 12>>(g, launch);
    return LaunchShape<RowsShape<1, 1, 2, 4, 4>>(g, launch);
  } else {
    if (eights <= 2 * blocks)
      return LaunchShape<RowsShape<kRowTiles, kRowWarps, 2, 2, 6>>(g, launch);
    LaunchShape<RowsShape<kRowTiles, kRowWarps, 4, 2, 3>>(g, launch);
  }
}

}  // namespace

void LaunchInOrderRows(const InOrderArgs& args, const Launch& launch) {
  if (args.rows <= 16) return LaunchColumns<1, 1>(args, launch);
  if (args.rows <= 32) return LaunchColumns<1, 2>(args, launch);
  static_assert(kInOrderRows == 64);
  LaunchColumns<2, 2>(args, launch);
}

}  // namespace millrace::cuda
