#include <cuda_bf16.h>

#include "kernels/cuda/matmul_column_sum.h"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {
namespace {

constexpr int kLanes = 8;   // sequences of rows per block, one warp each
constexpr int kUnroll = 8;  // rows in flight per thread

// 16 bytes as floats.
template <class T>
struct Vector;
template <>
struct Vector<float> {
  static constexpr int kWidth = 4;
  float4 raw;
  __device__ float operator[](int i) const { return reinterpret_cast<const float*>(&raw)[i]; }
};
template <>
struct Vector<__nv_bfloat16> {
  static constexpr int kWidth = 8;
  uint4 raw;
  __device__ float operator[](int i) const {  // a bf16 is the upper half of a float
    const uint32_t pair = reinterpret_cast<const uint32_t*>(&raw)[i / 2];
    return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
  }
};

__device__ float AsFloat(float value) { return value; }
__device__ float AsFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

// Block (tile, chunk): thread (x, y) sums rows y, y + kLanes, ... of the chunk for kWidth columns.
template <class T, bool kVectors>
__global__ void __launch_bounds__(32 * kLanes) SumChunks(const ColumnSum s) {
  constexpr int kWidth = Vector<T>::kWidth;
  __shared__ float lanes[kLanes][32 * kWidth];
  const int64_t first = (int64_t{blockIdx.x} * 32 + threadIdx.x) * kWidth;
  const int64_t begin = blockIdx.y * s.chunk_rows;
  const int64_t end = min(begin + s.chunk_rows, s.rows);
  float sums[kWidth] = {};
  if (first < s.columns) {
    const T* const x = reinterpret_cast<const T*>(s.x) + first;
    int64_t row = begin + threadIdx.y;
    if constexpr (kVectors) {
      for (; row + (kUnroll - 1) * kLanes < end; row += kUnroll * kLanes) {
        Vector<T> values[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u)
          values[u] = *reinterpret_cast<const Vector<T>*>(x + (row + u * kLanes) * s.row_stride);
#pragma unroll
        for (int u = 0; u < kUnroll; ++u)
#pragma unroll
          for (int i = 0; i < kWidth; ++i) sums[i] += values[u][i];
      }
      for (; row < end; row += kLanes) {
        const Vector<T> values = *reinterpret_cast<const Vector<T>*>(x + row * s.row_stride);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sums[i] += values[i];
      }
    } else {
      const int64_t left = s.columns - first;
      for (; row < end; row += kLanes)
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
          if (i < left) sums[i] += AsFloat(x[row * s.row_stride + i]);
    }
  }
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

// Thread (x, y) sums chunks y, y + kLanes, ... of one column.
__global__ void __launch_bounds__(32 * kLanes) SumPartials(const ColumnSum s) {
  __shared__ float lanes[kLanes][32];
  const int64_t column = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0;
  if (column < s.columns) {
#pragma unroll 8
    for (int64_t chunk = threadIdx.y; chunk < s.chunks; chunk += kLanes)
      sum += s.partials[chunk * s.columns + column];
  }
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= s.columns) return;
#pragma unroll
  for (int lane = 1; lane < kLanes; ++lane) sum += lanes[lane][threadIdx.x];
  const int64_t at = column * s.out_stride;
  if (s.out_dtype == DType::kF32) {
    float& out = reinterpret_cast<float*>(s.out)[at];
    out = s.accumulate ? out + sum : sum;
  } else {
    __nv_bfloat16& out = reinterpret_cast<__nv_bfloat16*>(s.out)[at];
    out = __float2bfloat16_rn(s.accumulate ? __bfloat162float(out) + sum : sum);
  }
}

template <class T>
void LaunchChunks(const ColumnSum& s, cudaStream_t stream) {
  static_assert(Vector<T>::kWidth <= kLanes, "the lanes of a block add up all of its columns");
  const int64_t tile = 32 * Vector<T>::kWidth;
  const dim3 grid(static_cast<unsigned>((s.columns + tile - 1) / tile), static_cast<unsigned>(s.chunks));
  if (s.vectors)
    SumChunks<T, true><<<grid, dim3(32, kLanes), 0, stream>>>(s);
  else
    SumChunks<T, false><<<grid, dim3(32, kLanes), 0, stream>>>(s);
  MR_CUDA_LAUNCHED();
}

}  // namespace

void LaunchColumnSum(const ColumnSum& s, cudaStream_t stream) {
  s.x_dtype == DType::kF32 ? LaunchChunks<float>(s, stream) : LaunchChunks<__nv_bfloat16>(s, stream);
  SumPartials<<<static_cast<unsigned>((s.columns + 31) / 32), dim3(32, kLanes), 0, stream>>>(s);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace::cuda
