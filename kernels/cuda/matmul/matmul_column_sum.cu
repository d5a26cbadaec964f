#include <type_traits>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/magnitude.cuh"
#include "kernels/cuda/matmul/matmul_column_sum.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kLanes = 8;   // sequences of rows per block, one warp each
constexpr int kUnroll = 8;  // rows in flight per thread

// Leaves registers for the rows in flight; without it the compiler has but two of them.
constexpr int kBlocksPerSm = 4;

// The last rows of x have been written last, and may still be in the L2 cache.
constexpr bool kLastRowFirst = true;

// 16 bytes as floats.
template <Elements E>
struct Vector {
  static constexpr int kWidth = 8;
  uint4 raw;
  __device__ float operator[](int i) const {
    const uint32_t pair = reinterpret_cast<const uint32_t*>(&raw)[i / 2];
    return i % 2 == 0 ? LowOf<E>(pair) : HighOf<E>(pair);
  }
};
template <>
struct Vector<Elements::kF32> {
  static constexpr int kWidth = 4;
  float4 raw;
  __device__ float operator[](int i) const { return reinterpret_cast<const float*>(&raw)[i]; }
};

// An element as it lies in memory.
template <Elements E>
using One = std::conditional_t<kIsShort<E>, uint16_t, float>;
template <Elements E>
__device__ __forceinline__ float AsFloat(One<E> value) {
  if constexpr (kIsShort<E>) return LowOf<E>(value);
  return value;
}

// The bits of the largest finite magnitude of `most` and what is added: nothing, unless kWanted.
template <bool kWanted>
struct Magnitude {
  uint32_t most = 0;

  template <Elements E>
  __device__ __forceinline__ void Add(const Vector<E>& values) {
    if constexpr (!kWanted) return;
    Most<E> of_vector;
    const auto add = [&](uint32_t word) { of_vector.bits = LargerWord<E>(of_vector.bits, word); };
    const uint32_t* const words = reinterpret_cast<const uint32_t*>(&values.raw);
    add(words[0]), add(words[1]), add(words[2]), add(words[3]);
    if (of_vector.Get() < kInfinity) {
      most = max(most, of_vector.Get());
    } else {
#pragma unroll
      for (int i = 0; i < Vector<E>::kWidth; ++i) Add(values[i]);
    }
  }
  __device__ __forceinline__ void Add(float value) {
    if constexpr (kWanted) most = max(most, FiniteBits(value));
  }
  __device__ __forceinline__ void Raise(const ColumnSum& s) const {
    if constexpr (kWanted) RaiseMagnitude(most, s.magnitude);
  }
};

template <Elements E>
__device__ __forceinline__ void AddVector(const Vector<E>& values,
                                          float (&sums)[Vector<E>::kWidth]) {
#pragma unroll
  for (int i = 0; i < Vector<E>::kWidth; ++i) sums[i] += values[i];
}

// sums[i] += the elements of rows row, row + step, ... below `rows` in columns first + i.
template <Elements E, bool kVectors, bool kMagnitude>
__device__ __forceinline__ void AddRows(const ColumnSum& s, int64_t first, uint32_t row,
                                        uint32_t step, float (&sums)[Vector<E>::kWidth],
                                        Magnitude<kMagnitude>& magnitude) {
  const auto rows = static_cast<uint32_t>(s.rows);
  if (row >= rows) return;
  int left = static_cast<int>((rows - 1 - row) / step) + 1;
  const int64_t begin = kLastRowFirst ? rows - 1 - row : row;
  const int64_t jump = (kLastRowFirst ? -int64_t{step} : int64_t{step}) * s.row_stride;
  const One<E>* x = reinterpret_cast<const One<E>*>(s.x) + first + begin * s.row_stride;
  if constexpr (kVectors) {
    Vector<E> values[kUnroll];
    for (; left >= kUnroll; left -= kUnroll, x += kUnroll * jump) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        values[u] = *reinterpret_cast<const Vector<E>*>(x + u * jump);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) AddVector(values[u], sums), magnitude.Add(values[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      values[u] = u < left ? *reinterpret_cast<const Vector<E>*>(x + u * jump) : Vector<E>{};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) AddVector(values[u], sums), magnitude.Add(values[u]);
  } else {
    const int64_t columns = s.columns - first;
    for (; left > 0; --left, x += jump)
#pragma unroll
      for (int i = 0; i < Vector<E>::kWidth; ++i)
        if (i < columns) sums[i] += AsFloat<E>(x[i]), magnitude.Add(AsFloat<E>(x[i]));
  }
}

// Mix: of x and out.
template <Elements Mix>
__device__ __forceinline__ void StoreSum(const ColumnSum& s, int64_t column, float sum) {
  const int64_t at = column * s.out_stride;
  if (s.out_dtype == DType::kF32) {
    float& out = reinterpret_cast<float*>(s.out)[at];
    out = s.accumulate ? out + sum : sum;
  } else {
    uint16_t& out = reinterpret_cast<uint16_t*>(s.out)[at];
    out = static_cast<uint16_t>(PairOf<Mix>(s.accumulate ? LowOf<Mix>(out) + sum : sum, 0.0f));
  }
}

// Block (tile, chunk): thread (x, y) sums rows chunk * kLanes + y, that + chunks *
// kLanes, ... in kWidth columns.
template <Elements E, bool kVectors, bool kMagnitude>
__global__ void __launch_bounds__(32 * kLanes, kBlocksPerSm) SumChunks(const ColumnSum s) {
  BeginKernel();
  constexpr int kWidth = Vector<E>::kWidth;
  __shared__ float lanes[kLanes][32 * kWidth];
  const int64_t first = (int64_t{blockIdx.x} * 32 + threadIdx.x) * kWidth;
  float sums[kWidth] = {};
  Magnitude<kMagnitude> magnitude;
  if (first < s.columns)
    AddRows<E, kVectors>(s, first, blockIdx.y * kLanes + threadIdx.y, gridDim.y * kLanes, sums,
                         magnitude);
  magnitude.Raise(s);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) lanes[threadIdx.y][threadIdx.x * kWidth + i] = sums[i];
  __syncthreads();
  const int thread = threadIdx.y * 32 + threadIdx.x;
  if (thread >= 32 * kWidth) return;
  const int64_t column = int64_t{blockIdx.x} * 32 * kWidth + thread;
  if (column >= s.columns) return;
  float sum = lanes[0][thread];
#pragma unroll
  for (int lane = 1; lane < kLanes; ++lane) sum += lanes[lane][thread];
  s.partials[blockIdx.y * s.columns + column] = sum;
}

// Thread (x, y) sums chunks y, y + 32, ... of column x of the block's 32, then warp
// y the 32 sums of column y.
template <Elements Mix>
__global__ void __launch_bounds__(1024, 1) SumPartials(const ColumnSum s) {
  BeginKernel();
  constexpr int kMost = (kColumnSumBlocks + 31) / 32;
  __shared__ float of_column[32][33];
  const int64_t first = int64_t{blockIdx.x} * 32, mine = first + threadIdx.x;
  float part[kMost];
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    const int64_t chunk = threadIdx.y + 32 * j;
    part[j] = chunk < s.chunks && mine < s.columns ? s.partials[chunk * s.columns + mine] : 0.0f;
  }
  float sum = part[0];
#pragma unroll
  for (int j = 1; j < kMost; ++j) sum += part[j];
  of_column[threadIdx.x][threadIdx.y] = sum;
  __syncthreads();
  sum = of_column[threadIdx.y][threadIdx.x];
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  const int64_t column = first + threadIdx.y;
  if (threadIdx.x == 0 && column < s.columns) StoreSum<Mix>(s, column, sum);
}

// Few rows, in one launch: a cluster of kCluster blocks sums a tile of 8 vectors' columns. Thread t
// of block b sums vector t % 8 of rows b * 32 + t / 8, that + kCluster * 32, ...; then lanes of a
// warp, warps and blocks are added in order.
constexpr int kCluster = 8;
constexpr int kClusterLanes = 32;

__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.aligned;" : : : "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.aligned;" : : : "memory");
}

template <Elements E, Elements Mix, bool kVectors, bool kMagnitude>
__global__ void __cluster_dims__(1, kCluster, 1) __launch_bounds__(8 * kClusterLanes, kBlocksPerSm)
    SumInCluster(const ColumnSum s) {
  BeginKernel();
  constexpr int kWidth = Vector<E>::kWidth, kTile = 8 * kWidth, kWarps = 8 * kClusterLanes / 32;
  __shared__ float of_warp[kWarps][kTile];
  __shared__ float of_block[kCluster][kTile];  // the first block's are used
  ClusterArrive();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first = int64_t{blockIdx.x} * kTile + thread % 8 * kWidth;
  float sums[kWidth] = {};
  Magnitude<kMagnitude> magnitude;
  if (first < s.columns)
    AddRows<E, kVectors>(s, first, blockIdx.y * kClusterLanes + threadIdx.x / 8,
                         kCluster * kClusterLanes, sums, magnitude);
  magnitude.Raise(s);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 8);
    sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 16);
    if (thread % 32 < 8) of_warp[thread / 32][thread % 8 * kWidth + i] = sums[i];
  }
  __syncthreads();
  ClusterWait();  // the first block has begun, and its memory is there
  if (thread < kTile) {
    float sum = of_warp[0][thread];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += of_warp[w][thread];
    const auto here =
        static_cast<uint32_t>(__cvta_generic_to_shared(&of_block[blockIdx.y][thread]));
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(there) : "r"(here));
    asm volatile("st.shared::cluster.f32 [%0], %1;" : : "r"(there), "f"(sum) : "memory");
  }
  __syncwarp();
  ClusterArrive();
  ClusterWait();
  const int64_t column = int64_t{blockIdx.x} * kTile + thread;
  if (blockIdx.y > 0 || thread >= kTile || column >= s.columns) return;
  float sum = of_block[0][thread];
#pragma unroll
  for (int b = 1; b < kCluster; ++b) sum += of_block[b][thread];
  StoreSum<Mix>(s, column, sum);
}

// f.operator()<kVectors, kMagnitude>().
template <Elements E, class F>
void WithVariant(const ColumnSum& s, F&& f) {
  const auto with = [&]<bool kVectors>() {
    return s.magnitude != nullptr ? f.template operator()<kVectors, kMayHaveMagnitude<E>>()
                                  : f.template operator()<kVectors, false>();
  };
  return s.vectors ? with.template operator()<true>() : with.template operator()<false>();
}

template <Elements E, Elements Mix>
void LaunchWhole(const ColumnSum& s, const Launch& launch) {
  const int64_t tile = 8 * Vector<E>::kWidth;
  const dim3 grid(static_cast<unsigned>(CeilDiv(s.columns, tile)), kCluster);
  WithVariant<E>(s, [&]<bool kVectors, bool kMagnitude>() {
    LaunchKernel(launch, grid, 8 * kClusterLanes, 0, SumInCluster<E, Mix, kVectors, kMagnitude>, s);
  });
}

template <Elements E, Elements Mix>
void LaunchChunks(const ColumnSum& s, const Launch& launch) {
  static_assert(Vector<E>::kWidth <= kLanes, "the lanes of a block add up all of its columns");
  const int64_t tile = 32 * Vector<E>::kWidth;
  const dim3 grid(static_cast<unsigned>(CeilDiv(s.columns, tile)), static_cast<unsigned>(s.chunks));
  WithVariant<E>(s, [&]<bool kVectors, bool kMagnitude>() {
    LaunchKernel(launch, grid, dim3(32, kLanes), 0, SumChunks<E, kVectors, kMagnitude>, s);
  });
  LaunchKernel(launch, static_cast<unsigned>((s.columns + 31) / 32), dim3(32, 32), 0,
               SumPartials<Mix>, s);
}

}  // namespace

void LaunchColumnSum(const ColumnSum& s, const Launch& launch) {
  WithMixOf(MixOf({s.x_dtype, s.out_dtype}), [&]<Elements Mix>() {
    const auto run = [&]<Elements E>() {
      s.partials == nullptr ? LaunchWhole<E, Mix>(s, launch) : LaunchChunks<E, Mix>(s, launch);
    };
    s.x_dtype == DType::kF32 ? run.template operator()<Elements::kF32>()
                             : run.template operator()<kShortOf<Mix>>();
  });
}

}  // namespace millrace::cuda
