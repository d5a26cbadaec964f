#include <algorithm>

#include "kernels/cuda/magnitude.cuh"
#include "kernels/cuda/matmul/float8.cuh"
#include "kernels/cuda/matmul/shard_quantize_launch.h"
#include "kernels/cuda/pack.cuh"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr float kE4M3Largest = 448.0f;

__device__ __forceinline__ float Rounded(float v, bool bf16) {
  return bf16 && IsFinite(v) ? __uint_as_float(PairOfBF16(v, 0.0f) << 16) : v;
}

// Of an element of the matrix.
__device__ __forceinline__ uint32_t ScaleIndex(const MatrixPart& p, uint32_t element) {
  const uint32_t row = p.columns.Quotient(element), column = element - row * p.columns.divisor;
  return p.block_rows.Quotient(row) * p.scale_columns + p.block_columns.Quotient(column);
}

// A warp takes successive elements, and raises a magnitude when its elements come to another one.
// A maximum does not depend on the order of warps.
constexpr int kPerWarp = 64 * kWarp;
__global__ void __launch_bounds__(kThreads)
    PartMagnitudesKernel(const MatrixPart p, uint32_t* const magnitudes) {
  BeginKernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t begin =
      (blockIdx.x * kWarps + threadIdx.x / kWarp) * static_cast<uint32_t>(kPerWarp);
  uint32_t most = 0, of = 0;
  const auto flush = [&] {
    most = __reduce_max_sync(0xffffffffu, most);
    if (lane == 0 && most > 0) atomicMax(magnitudes + of, most);
    most = 0;
  };
  for (uint32_t at = begin; at < min(begin + kPerWarp, p.n); at += kWarp) {
    const uint32_t i = at + lane;
    const bool inside = i < p.n;
    const uint32_t bits = inside ? FiniteBits(Rounded(p.x[i], p.bf16)) : 0,
                   scale = ScaleIndex(p, p.first + (inside ? i : at)),
                   first = __shfl_sync(0xffffffffu, scale, 0);
    if (!__all_sync(0xffffffffu, scale == first)) {  // a block ends among them
      if (bits > 0) atomicMax(magnitudes + scale, bits);
      continue;
    }
    if (first != of) flush();
    of = first;
    most = max(most, bits);
  }
  flush();
}

template <bool kPowers>
__device__ __forceinline__ uint32_t PayloadOf(const MatrixPart& p, const float* scales,
                                              uint32_t i) {
  const float v = Rounded(p.x[i], p.bf16);
  if (!IsFinite(v)) return Float8NanOf(v);
  const ScaleDivisor<kPowers> by(scales[ScaleIndex(p, p.first + i)]);
  return PairOfFloat8<false>(by.Divide(v), 0.0f) & 0xffu;
}

template <bool kPowers>
__global__ void __launch_bounds__(kThreads)
    PartQuantizeKernel(const MatrixPart p, const float* const scales, uint8_t* const payload) {
  BeginKernel();
  const uint32_t stride = gridDim.x * kThreads;
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < p.n; i += stride)
    payload[i] = static_cast<uint8_t>(PayloadOf<kPowers>(p, scales, i));
}

__global__ void __launch_bounds__(kThreads)
    FlatScalesKernel(const uint32_t* const table, const int ranks, const int64_t pitch,
                     const int64_t count, const bool powers, float* const scales) {
  BeginKernel();
  const int64_t s = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (s >= count) return;
  uint32_t most = 0;
  for (int r = 0; r < ranks; ++r) most = max(most, table[r * pitch + s]);
  scales[s] = powers ? ScaleFor<true>(most, kE4M3Largest) : ScaleFor<false>(most, kE4M3Largest);
}

// Tiles of 64 x 64; a row of shared memory is a word longer, so that columns are in all banks.
constexpr int kTile = 64, kTileRows = 8;
__global__ void __launch_bounds__(kTile* kTileRows) TurnKernel(const TurnArgs a) {
  BeginKernel();
  __shared__ uint8_t tile[kTile][kTile + 4];
  const int row = static_cast<int>(blockIdx.y) * kTile,
            column = static_cast<int>(blockIdx.x) * kTile;
  const int x = static_cast<int>(threadIdx.x);
  for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileRows)
    if (row + y < a.rows && column + x < a.columns)
      tile[y][x] = a.payload[(row + y) * a.stride + column + x];
  __syncthreads();
  for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileRows)
    if (row + x < a.rows && column + y < a.columns)
      a.turned[(column + y) * a.turned_stride + row + x] = tile[x][y];
}

__global__ void __launch_bounds__(kThreads)
    TurnScalesKernel(const ScalesAt in, const ScalesAt out, const int64_t count) {
  BeginKernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int r = static_cast<int>(i / out.columns), c = static_cast<int>(i % out.columns);
  out.data[r * out.row_stride + c * out.column_stride] =
      r < in.rows && c < in.columns ? in.data[r * in.row_stride + c * in.column_stride] : 1.0f;
}

unsigned Blocks(int64_t n, int64_t of_block) { return static_cast<unsigned>(CeilDiv(n, of_block)); }

}  // namespace

void LaunchPartMagnitudes(const MatrixPart& part, uint32_t* magnitudes, const Launch& launch) {
  LaunchKernel(launch, Blocks(part.n, int64_t{kPerWarp} * kWarps), kThreads, 0,
               PartMagnitudesKernel, part, magnitudes);
}

void LaunchPartQuantize(const MatrixPart& part, const float* scales, bool powers, uint8_t* payload,
                        const Launch& launch) {
  constexpr int kPerThread = 8;
  LaunchKernel(launch, Blocks(part.n, int64_t{kThreads} * kPerThread), kThreads, 0,
               powers ? PartQuantizeKernel<true> : PartQuantizeKernel<false>, part, scales,
               payload);
}

void LaunchFlatScales(const uint32_t* table, int ranks, int64_t pitch, int64_t count, bool powers,
                      float* scales, const Launch& launch) {
  if (count == 0) return;
  LaunchKernel(launch, Blocks(count, kThreads), kThreads, 0, FlatScalesKernel, table, ranks, pitch,
               count, powers, scales);
}

void LaunchTurn(const TurnArgs& args, const Launch& launch) {
  if (args.rows == 0 || args.columns == 0) return;
  LaunchKernel(launch, dim3(Blocks(args.columns, kTile), Blocks(args.rows, kTile)),
               dim3(kTile, kTileRows), 0, TurnKernel, args);
}

void LaunchTurnScales(const ScalesAt& in, const ScalesAt& out, const Launch& launch) {
  const int64_t count = int64_t{out.rows} * out.columns;
  if (count == 0) return;
  LaunchKernel(launch, Blocks(count, kThreads), kThreads, 0, TurnScalesKernel, in, out, count);
}

}  // namespace millrace::cuda
