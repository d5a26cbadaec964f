// Tiles of attention in shared memory, and products of them, by blocks of 256 threads in f32.
//
// A tile of n rows of a head is n rows of kDepth floats, kDepth >= D, zero past the last row and D;
// rows lie kDepth + 4 floats apart, so that threads that read neighbouring rows use different
// banks. Thread (x, y), 16 by 16, owns rows y + 16*i of a result, and of its columns
//   x + 16*j               when the columns are rows of a tile (scores),
//   16*W*g + W*x + 0..W-1  when they are the columns of a tile (out, gradients),
//                          W = Columns<kDepth>::kWidth.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/pack.cuh"

namespace millrace::cuda {

inline constexpr int kThreads = 256;

template <int kDepth>
struct Columns {
  static constexpr int kPerThread = kDepth / 16;
  static constexpr int kWidth = kPerThread < 4 ? kPerThread : 4;
  static constexpr int kGroups = kPerThread / kWidth;
};

template <int kDepth>
__host__ __device__ constexpr int TileFloats(int rows) {
  return rows * (kDepth + 4);
}

__device__ __forceinline__ int ThreadX() { return static_cast<int>(threadIdx.x) % 16; }
__device__ __forceinline__ int ThreadY() { return static_cast<int>(threadIdx.x) / 16; }

__device__ __forceinline__ int64_t RowAt(const AttentionHeads& x, int64_t b, int t, int h) {
  return b * x.batch_stride + t * x.row_stride + h * x.head_stride;
}

// The row of the key at position t: PlaceOf of context_rows.h.
__device__ __forceinline__ int64_t KeyAt(const AttentionHeads& x, const AttentionSizes& sizes,
                                         int64_t b, int t, int h) {
  if (sizes.ranks == 1) return RowAt(x, b, t, h);
  const int chunk = t / sizes.chunk, at = t % sizes.chunk;
  if (chunk < sizes.ranks) return RowAt(x, chunk * sizes.batch + b, at, h);
  return RowAt(x, (2 * sizes.ranks - 1 - chunk) * sizes.batch + b, sizes.chunk + at, h);
}

// As of Rows, and so LoadOne and StoreOne (pack.cuh) are of heads, too.
template <Elements Mix>
__device__ __forceinline__ bool AreShort(const AttentionHeads& x) {
  return Mix == Elements::kAny ? x.bf16 : x.f16;
}

// Elements [d, d + 4) of the row at `row`, zero from `depth` on.
template <Elements Mix>
__device__ __forceinline__ float4 LoadFour(const AttentionHeads& x, int64_t row, int d, int depth) {
  if (x.wide) {
    if (d >= depth) return make_float4(0, 0, 0, 0);
    if (!AreShort<Mix>(x))
      return *reinterpret_cast<const float4*>(reinterpret_cast<const float*>(x.data) + row + d);
    const uint2 pairs =
        *reinterpret_cast<const uint2*>(reinterpret_cast<const uint16_t*>(x.data) + row + d);
    return make_float4(LowOf<Mix>(pairs.x), HighOf<Mix>(pairs.x), LowOf<Mix>(pairs.y),
                       HighOf<Mix>(pairs.y));
  }
  return make_float4(d < depth ? LoadOne<Mix>(x, row + d) : 0.0f,
                     d + 1 < depth ? LoadOne<Mix>(x, row + d + 1) : 0.0f,
                     d + 2 < depth ? LoadOne<Mix>(x, row + d + 2) : 0.0f,
                     d + 3 < depth ? LoadOne<Mix>(x, row + d + 3) : 0.0f);
}

// tile[r, :] = the row at row_of(r) for r < rows, else zero.
template <Elements Mix, int kRows, int kDepth, class RowOf>
__device__ __forceinline__ void LoadRows(float* tile, const AttentionHeads& x, int rows, int depth,
                                         RowOf row_of) {
  constexpr int kFours = kDepth / 4;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kFours; i += kThreads) {
    const int r = i / kFours, d = i % kFours * 4;
    const float4 four = r < rows ? LoadFour<Mix>(x, row_of(r), d, depth) : make_float4(0, 0, 0, 0);
    *reinterpret_cast<float4*>(tile + r * (kDepth + 4) + d) = four;
  }
}

// tile[r, :] = x[b, begin + r, h, :] below row `end`, queries.
template <Elements Mix, int kRows, int kDepth>
__device__ __forceinline__ void LoadQueries(float* tile, const AttentionHeads& x, int64_t b, int h,
                                            int begin, int end, int depth) {
  LoadRows<Mix, kRows, kDepth>(tile, x, end - begin, depth,
                               [&](int r) { return RowAt(x, b, begin + r, h); });
}

// The same of keys or values, from position `begin` on.
template <Elements Mix, int kRows, int kDepth>
__device__ __forceinline__ void LoadKeys(float* tile, const AttentionHeads& x, int64_t b, int h,
                                         int begin, const AttentionSizes& sizes) {
  LoadRows<Mix, kRows, kDepth>(tile, x, sizes.length - begin, sizes.depth,
                               [&](int r) { return KeyAt(x, sizes, b, begin + r, h); });
}

__device__ __forceinline__ float4 FourAt(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}
__device__ __forceinline__ float Of(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// sum[i][j] = a[y + 16*i, :] . b[x + 16*j, :], over the first `depth` columns rounded up to four.
template <int kDepth, int kI, int kJ>
__device__ __forceinline__ void DotRows(float (&sum)[kI][kJ], const float* a, const float* b,
                                        int depth) {
  constexpr int kLine = kDepth + 4;
  const float* const my_a = a + ThreadY() * kLine;
  const float* const my_b = b + ThreadX() * kLine;
#pragma unroll
  for (int i = 0; i < kI; ++i)
#pragma unroll
    for (int j = 0; j < kJ; ++j) sum[i][j] = 0;
#pragma unroll 2
  for (int d = 0; d < depth; d += 4) {
    float4 left[kI], right[kJ];
#pragma unroll
    for (int i = 0; i < kI; ++i) left[i] = FourAt(my_a + 16 * i * kLine + d);
#pragma unroll
    for (int j = 0; j < kJ; ++j) right[j] = FourAt(my_b + 16 * j * kLine + d);
#pragma unroll
    for (int i = 0; i < kI; ++i)
#pragma unroll
      for (int j = 0; j < kJ; ++j) {
        sum[i][j] = fmaf(left[i].x, right[j].x, sum[i][j]);
        sum[i][j] = fmaf(left[i].y, right[j].y, sum[i][j]);
        sum[i][j] = fmaf(left[i].z, right[j].z, sum[i][j]);
        sum[i][j] = fmaf(left[i].w, right[j].w, sum[i][j]);
      }
  }
}

// sum[i][c] += weights[y + 16*i, :] . tile[:, column c of this thread].
// weights [.., kInner], its rows kInner + 4 floats apart; tile [kInner, kDepth].
template <int kDepth, int kInner, int kI>
__device__ __forceinline__ void AddProduct(float (&sum)[kI][Columns<kDepth>::kPerThread],
                                           const float* weights, const float* tile) {
  using C = Columns<kDepth>;
  constexpr int kLine = kDepth + 4, kWeights = kInner + 4;
  const float* const my_weights = weights + ThreadY() * kWeights;
  const float* const my_tile = tile + ThreadX() * C::kWidth;
#pragma unroll 1
  for (int n = 0; n < kInner; n += 4) {
    float4 w[kI];
#pragma unroll
    for (int i = 0; i < kI; ++i) w[i] = FourAt(my_weights + 16 * i * kWeights + n);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int g = 0; g < C::kGroups; ++g) {
        const float* const at = my_tile + (n + m) * kLine + 16 * C::kWidth * g;
        float value[C::kWidth];
        if constexpr (C::kWidth == 4) {
          const float4 four = FourAt(at);
          value[0] = four.x, value[1] = four.y, value[2] = four.z, value[3] = four.w;
        } else {
          static_assert(C::kWidth == 2);
          const float2 two = *reinterpret_cast<const float2*>(at);
          value[0] = two.x, value[1] = two.y;
        }
#pragma unroll
        for (int i = 0; i < kI; ++i)
#pragma unroll
          for (int c = 0; c < C::kWidth; ++c)
            sum[i][g * C::kWidth + c] = fmaf(Of(w[i], m), value[c], sum[i][g * C::kWidth + c]);
      }
    }
  }
}

// Row row_of(r) of x, columns of this thread, = sum[i] * factor[i], for r = y + 16*i < rows.
template <Elements Mix, int kDepth, int kI, class RowOf>
__device__ __forceinline__ void StoreRows(const AttentionHeads& x, int rows, int depth,
                                          const float (&sum)[kI][Columns<kDepth>::kPerThread],
                                          const float (&factor)[kI], RowOf row_of) {
  using C = Columns<kDepth>;
#pragma unroll
  for (int i = 0; i < kI; ++i) {
    const int r = ThreadY() + 16 * i;
    if (r >= rows) continue;
    const int64_t row = row_of(r);
#pragma unroll
    for (int g = 0; g < C::kGroups; ++g) {
      const int d = 16 * C::kWidth * g + C::kWidth * ThreadX();
#pragma unroll
      for (int c = 0; c < C::kWidth; ++c)
        if (d + c < depth) StoreOne<Mix>(x, row + d + c, sum[i][g * C::kWidth + c] * factor[i]);
    }
  }
}

}  // namespace millrace::cuda
