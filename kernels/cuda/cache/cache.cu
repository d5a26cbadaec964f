#include <math_constants.h>

#include "kernels/cuda/cache/cache_launch.h"
#include "kernels/cuda/cache/elements.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPerLane = kMostCachedDepth / kWarp;

// The first element of position t's row of the sequence in `slot`.
__device__ __forceinline__ int64_t RowAt(const CachePlaces& p, int slot, int t) {
  const int64_t page = p.pages[slot * p.pages_of_sequence + t / p.page_tokens];
  return (page * p.page_tokens + t % p.page_tokens) * p.width;
}

// A block per row, and as many elements of it as it has threads.
__global__ void __launch_bounds__(kThreads) EmbedRowsKernel(const EmbedRowsArgs a) {
  BeginKernel();
  LetNextBegin();
  const int r = static_cast<int>(blockIdx.x);
  const int64_t token = a.tokens[r] == -1 ? 0 : a.tokens[r], t = a.at[r],
                c = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (c < a.columns) {
    float value = LoadAny(a.table, token * a.table_stride + c, a.table_bf16);
    if (a.positions != nullptr)
      value = __fadd_rn(value, LoadAny(a.positions, t * a.positions_stride + c, a.positions_bf16));
    const int64_t to = r * a.out_stride + c;
    if (a.out_bf16)
      Put(reinterpret_cast<uint16_t*>(a.out), to, value);
    else
      Put(reinterpret_cast<float*>(a.out), to, value);
  }
}

// A block per row, and as many elements of it as it has threads. T: as many neighbours as one
// access takes, in which strides and widths are counted.
template <class T>
__global__ void __launch_bounds__(kThreads) CacheRowsKernel(const CachedAttentionArgs a) {
  BeginKernel();
  const int r = static_cast<int>(blockIdx.x);
  const int64_t c = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (c >= a.places.width) return;
  const T value = (reinterpret_cast<const T*>(a.x) + r * a.x_stride)[c];
  const int slot = a.places.slots[r];
  if (slot < 0) return;
  (reinterpret_cast<T*>(a.places.cache) + RowAt(a.places, slot, a.places.at[r]))[c] = value;
}

// A block per row and query head. Each warp takes every kWarps-th key with a running maximum and
// sum; lane l has elements l, l + 32, ... of the head. The warps' parts are joined in their order,
// so that the bits are the same every time.
template <class T>
__global__ void __launch_bounds__(kThreads) CachedAttentionKernel(const CachedAttentionArgs a) {
  BeginKernel();
  const int r = static_cast<int>(blockIdx.x), h = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int slot = a.places.slots[r], t = a.places.at[r];
  T* const out = reinterpret_cast<T*>(a.out.data) + r * a.out.row_stride + h * a.out.head_stride;
  if (slot < 0) {
    for (int d = static_cast<int>(threadIdx.x); d < a.depth; d += kThreads) Put(out, d, 0.0f);
    return;
  }
  const T* const q =
      reinterpret_cast<const T*>(a.q.data) + r * a.q.row_stride + h * a.q.head_stride;
  const T* const cache = reinterpret_cast<const T*>(a.places.cache);
  const int kv = h / (a.heads / a.kv_heads);
  float query[kPerLane], sum[kPerLane] = {};
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    query[i] = lane + i * kWarp < a.depth ? Load(q, lane + i * kWarp) * a.scale : 0.0f;
  float most = -CUDART_INF_F, total = 0;
  const int first = a.window > 0 && t >= a.window ? t - static_cast<int>(a.window) + 1 : 0;
  for (int u = first + warp; u <= t; u += kWarps) {
    const T* const row = cache + RowAt(a.places, slot, u);
    const T *const k = row + kv * a.depth, *const v = row + (a.kv_heads + kv) * a.depth;
    float score = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (lane + i * kWarp < a.depth) score += query[i] * Load(k, lane + i * kWarp);
    score = WarpSum(score);
    const float higher = fmaxf(most, score), keep = __expf(most - higher),
                weight = __expf(score - higher);
    most = higher;
    total = total * keep + weight;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (lane + i * kWarp < a.depth) sum[i] = sum[i] * keep + weight * Load(v, lane + i * kWarp);
  }
  __shared__ float all_most[kWarps], all_total[kWarps], all_sum[kWarps][kMostCachedDepth];
  if (lane == 0) all_most[warp] = most, all_total[warp] = total;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (lane + i * kWarp < a.depth) all_sum[warp][lane + i * kWarp] = sum[i];
  __syncthreads();
  float highest = all_most[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) highest = fmaxf(highest, all_most[w]);
  for (int d = static_cast<int>(threadIdx.x); d < a.depth; d += kThreads) {
    float value = 0, weight = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float share = __expf(all_most[w] - highest);  // of a warp without keys: 0
      weight += all_total[w] * share;
      value += all_sum[w][d] * share;
    }
    Put(out, d, value / weight);
  }
}

}  // namespace

void LaunchEmbedRows(const EmbedRowsArgs& args, const Launch& launch) {
  const dim3 grid(static_cast<unsigned>(args.rows),
                  static_cast<unsigned>(CeilDiv(args.columns, kThreads)));
  LaunchKernel(launch, grid, kThreads, 0, EmbedRowsKernel, args);
}

void LaunchCacheRows(const CachedAttentionArgs& args, bool bf16, const Launch& launch) {
  const int bytes = bf16 ? 2 : 4, pack = 16 / bytes;
  CachedAttentionArgs packs = args;
  const auto run = [&]<class T>(T) {
    const dim3 grid(static_cast<unsigned>(args.rows),
                    static_cast<unsigned>(CeilDiv(packs.places.width, kThreads)));
    LaunchKernel(launch, grid, kThreads, 0, CacheRowsKernel<T>, packs);
  };
  if (args.x_stride % pack == 0 && args.places.width % pack == 0 &&
      reinterpret_cast<uintptr_t>(args.x) % 16 == 0 &&
      reinterpret_cast<uintptr_t>(args.places.cache) % 16 == 0) {
    packs.x_stride /= pack, packs.places.width /= pack;
    return run(uint4{});
  }
  if (bf16)
    run(uint16_t{});
  else
    run(float{});
}

void LaunchCachedAttention(const CachedAttentionArgs& args, bool bf16, const Launch& launch) {
  const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>(args.heads));
  if (bf16)
    LaunchKernel(launch, grid, kThreads, 0, CachedAttentionKernel<uint16_t>, args);
  else
    LaunchKernel(launch, grid, kThreads, 0, CachedAttentionKernel<float>, args);
}

}  // namespace millrace::cuda
