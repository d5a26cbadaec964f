#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/matmul/few_rows.h"
#include "kernels/cuda/pack.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kPass = kWarp * kPack;  // elements of a line that a warp reads at once
constexpr int kLine = 64;             // elements of a line of the cache

__device__ __forceinline__ float LoadAny(const Rows& rows, int64_t at) {
  return rows.bf16
             ? __uint_as_float(uint32_t{reinterpret_cast<const uint16_t*>(rows.data)[at]} << 16)
             : reinterpret_cast<const float*>(rows.data)[at];
}
// Returns what was stored.
__device__ __forceinline__ float StoreAny(const Rows& rows, int64_t at, float v) {
  if (!rows.bf16) return reinterpret_cast<float*>(rows.data)[at] = v;
  const uint32_t bits = PairOfBF16(v, 0.0f);
  reinterpret_cast<uint16_t*>(rows.data)[at] = static_cast<uint16_t>(bits);
  return __uint_as_float(bits << 16);
}
__device__ __forceinline__ float RoundAs(const Rows& rows, float v) {
  return rows.bf16 ? __uint_as_float(PairOfBF16(v, 0.0f) << 16) : v;
}

// The element of a row whose product is `sum`: bias, activation, rounding.
__device__ __forceinline__ void StoreColumn(const FewRowsArgs& a, int row, int column, float sum) {
  float own = sum;
  if (a.bias.data != nullptr) own = __fadd_rn(own, LoadAny(a.bias, column));
  const int64_t to = row * a.out.stride + column;
  if (!a.gelu) {
    StoreAny(a.out, to, own);
    return;
  }
  // As an activation that reads the stored value (elementwise/activation.cu).
  own = a.pre.data != nullptr ? StoreAny(a.pre, row * a.pre.stride + column, own)
                              : RoundAs(a.out, own);
  StoreAny(a.out, to, __fmul_rn(GeluSigmoid(own), own));
}

// A warp forms kColumns neighbouring columns of kRows rows; a lane's packs are 256 elements apart.
// kAhead passes of kColumns packs are in flight.
template <int kRows, int kColumns>
__global__ void __launch_bounds__(kThreads) FewRowsKernel(const FewRowsArgs a) {
  constexpr int kAhead = 8 / kColumns > 2 ? 8 / kColumns : 2;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int first = (static_cast<int>(blockIdx.x) * kWarps + warp) * kColumns;
  const uint16_t* weight[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c)
    weight[c] =
        reinterpret_cast<const uint16_t*>(a.b.data) + min(first + c, a.columns - 1) * a.b.stride;
    // Into the second cache, where whoever writes weights meanwhile would find them: this is no
    // access to memory in the sense of BeginKernel.
#pragma unroll
  for (int c = 0; c < kColumns; ++c)
    for (int at = lane * kLine; at < min(a.depth, kAhead * kPass); at += kWarp * kLine)
      asm volatile("prefetch.global.L2 [%0];" : : "l"(weight[c] + at));
  BeginKernel();
  if (first >= a.columns) return;
  const uint16_t* const x = reinterpret_cast<const uint16_t*>(a.a.data);
  float sum[kRows][kColumns] = {};
  for (int begin = lane * kPack; begin < a.depth; begin += kAhead * kPass) {
    uint4 w[kAhead][kColumns];
#pragma unroll
    for (int n = 0; n < kAhead; ++n)
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        w[n][c] = begin + n * kPass < a.depth ? ReadOnce(weight[c] + begin + n * kPass)
                                              : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      if (begin + n * kPass >= a.depth) break;
      float rows[kRows][kPack];
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        ToFloats(*reinterpret_cast<const uint4*>(x + min(r, a.rows - 1) * a.a.stride + begin +
                                                 n * kPass),
                 rows[r]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        float f[kPack];
        ToFloats(w[n][c], f);
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
          for (int i = 0; i < kPack; ++i) sum[r][c] += rows[r][i] * f[i];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[r][c] = WarpSum(sum[r][c]);
  // Lane r * kColumns + c has column c of row r.
  float own = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (lane == r * kColumns + c) own = sum[r][c];
  const int row = lane / kColumns, column = first + lane % kColumns;
  if (row >= min(kRows, a.rows) || column >= a.columns) return;
  StoreColumn(a, row, column, own);
}

template <int kRows, int kColumns>
void LaunchColumns(const FewRowsArgs& args, const Launch& launch) {
  const int64_t blocks = CeilDiv(args.columns, kWarps * kColumns);
  Launch of_rows = launch;
  of_rows.one_row = args.rows == 1;
  LaunchKernel(of_rows, static_cast<unsigned>(blocks), kThreads, 0, FewRowsKernel<kRows, kColumns>,
               args);
}

// More columns to a warp read a row's values less often; fewer keep more of the device busy.
template <int kRows>
void LaunchRows(const FewRowsArgs& args, const Launch& launch) {
  const int64_t warps = int64_t{8} * launch.sms;
  if (args.columns >= 4 * warps) return LaunchColumns<kRows, 4>(args, launch);
  if (args.columns >= 2 * warps) return LaunchColumns<kRows, 2>(args, launch);
  LaunchColumns<kRows, 1>(args, launch);
}

}  // namespace

void LaunchFewRows(const FewRowsArgs& args, const Launch& launch) {
  static_assert(kFewRows == 4);
  if (args.rows == 1) return LaunchRows<1>(args, launch);
  if (args.rows == 2) return LaunchRows<2>(args, launch);
  LaunchRows<4>(args, launch);
}

}  // namespace millrace::cuda
