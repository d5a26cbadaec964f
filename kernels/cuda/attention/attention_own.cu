// Attention in f32, for every head dimension up to 256 and any strides. Forward after
// FlashAttention-2 (arXiv 2307.08691): a block keeps 64 queries and walks over the keys that they
// see, with a running maximum and sum per row.
// Backward: p is recomputed from lse, and with delta = d_out . out
//   d_s = p * (d_out . v - delta) * scale,  d_q = d_s k,  d_k = d_s^T q,  d_v = p^T d_out.
// One kernel has a block per 64 queries for d_q, another a block per 64 keys for d_k and
// d_v, which adds up the query heads of its group: two products more than with atomics, and
// the same bits every time.
#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/launch.cuh"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {
namespace {

constexpr int kTile = kAttentionTile;
constexpr int kScoreLine = kTile + 4;

__device__ __forceinline__ int Tiles(int length) { return (length + kTile - 1) / kTile; }

__device__ __forceinline__ int64_t LseAt(const AttentionLse& lse, int64_t b, int h, int t) {
  return b * lse.batch_stride + h * lse.head_stride + t * lse.row_stride;
}

// Over the 16 threads that share a row.
__device__ __forceinline__ float RowMax(float v) {
#pragma unroll
  for (int lane = 8; lane > 0; lane /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, lane));
  return v;
}
__device__ __forceinline__ float RowSum(float v) {
#pragma unroll
  for (int lane = 8; lane > 0; lane /= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
  return v;
}

// Which 64 rows, head and batch row a block works on: the tiles with the most work start first.
struct Work {
  int begin, head;
  int64_t batch;
};
__device__ __forceinline__ Work WorkOf(const AttentionSizes& sizes, int heads, bool last_first) {
  const int64_t per_tile = sizes.batch * heads, index = blockIdx.x;
  const int tile = static_cast<int>(index / per_tile);
  const int64_t rest = index % per_tile;
  return {(last_first ? Tiles(sizes.length) - 1 - tile : tile) * kTile,
          static_cast<int>(rest % heads), rest / heads};
}

template <int kDepth>
constexpr int ForwardBytes() {
  return (2 * TileFloats<kDepth>(kTile) + kTile * kScoreLine) * 4;
}

template <int kDepth>
__global__ void __launch_bounds__(kThreads) ForwardKernel(const AttentionArgs args) {
  BeginKernel();
  extern __shared__ float4 shared[];
  float* const q = reinterpret_cast<float*>(shared);
  float* const kv = q + TileFloats<kDepth>(kTile);  // keys, then values
  float* const weights = kv + TileFloats<kDepth>(kTile);
  const AttentionSizes& sizes = args.sizes;
  const Work work = WorkOf(sizes, sizes.heads, true);
  const int kv_head = work.head / (sizes.heads / sizes.kv_heads);
  const int x = ThreadX(), y = ThreadY();

  LoadTile<kTile, kDepth>(q, args.q, work.batch, work.head, work.begin, sizes);
  float out[4][Columns<kDepth>::kPerThread] = {};
  float max[4], sum[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) max[i] = -INFINITY, sum[i] = 0;

  for (int keys = 0; keys <= work.begin; keys += kTile) {
    __syncthreads();
    LoadTile<kTile, kDepth>(kv, args.k, work.batch, kv_head, keys, sizes);
    __syncthreads();
    float s[4][4];
    DotRows<kDepth>(s, q, kv, sizes.depth);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = work.begin + y + 16 * i;
      float tile_max = -INFINITY;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[i][j] = keys + x + 16 * j <= t ? s[i][j] * args.scale : -INFINITY;
        tile_max = fmaxf(tile_max, s[i][j]);
      }
      // Key 0 is visible to every row, so the maximum is finite from the first tile on.
      const float new_max = fmaxf(max[i], RowMax(tile_max));
      const float shrink = expf(max[i] - new_max);
      max[i] = new_max;
      float tile_sum = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float p = expf(s[i][j] - new_max);
        weights[(y + 16 * i) * kScoreLine + x + 16 * j] = p;
        tile_sum += p;
      }
      sum[i] = sum[i] * shrink + RowSum(tile_sum);
#pragma unroll
      for (float& o : out[i]) o *= shrink;
    }
    __syncthreads();
    LoadTile<kTile, kDepth>(kv, args.v, work.batch, kv_head, keys, sizes);
    __syncthreads();
    AddProduct<kDepth, kTile>(out, weights, kv);
  }

  float inverse[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    inverse[i] = 1.0f / sum[i];
    const int t = work.begin + y + 16 * i;
    if (args.lse.data != nullptr && x == 0 && t < sizes.length)
      args.lse.data[LseAt(args.lse, work.batch, work.head, t)] = max[i] + logf(sum[i]);
  }
  StoreRows<kDepth>(args.out, work.batch, work.head, work.begin, sizes, out, inverse);
}

// delta[b,h,t] = d_out[b,t,h,:] . out[b,t,h,:], a warp per row.
__global__ void __launch_bounds__(kThreads) DeltaKernel(const AttentionGradArgs args) {
  BeginKernel();
  const AttentionSizes& sizes = args.sizes;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (row >= sizes.batch * sizes.heads * sizes.length) return;
  const int t = static_cast<int>(row % sizes.length), lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t rest = row / sizes.length;
  const int h = static_cast<int>(rest % sizes.heads);
  const int64_t b = rest / sizes.heads;
  const int64_t a = RowAt(args.d_out, b, t, h), c = RowAt(args.out, b, t, h);
  float sum = 0;
  for (int d = lane; d < sizes.depth; d += 32)
    sum = fmaf(LoadOne(args.d_out, a + d), LoadOne(args.out, c + d), sum);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (lane == 0) args.delta[row] = sum;
}

// p and d_s of query t and key u from their dot products; 0 where the query does not see the key.
struct Gradient {
  float p, d_s;
};
__device__ __forceinline__ Gradient GradientOf(bool visible, float q_k, float d_out_v, float lse,
                                               float delta, float scale) {
  if (!visible) return {0, 0};
  const float p = expf(q_k * scale - lse);
  return {p, p * (d_out_v - delta) * scale};
}

template <int kDepth>
constexpr int QueryGradBytes() {
  return (3 * TileFloats<kDepth>(kTile) + kTile * kScoreLine) * 4;
}

template <int kDepth>
__global__ void __launch_bounds__(kThreads) QueryGradKernel(const AttentionGradArgs args) {
  BeginKernel();
  extern __shared__ float4 shared[];
  float* const q = reinterpret_cast<float*>(shared);
  float* const d_out = q + TileFloats<kDepth>(kTile);
  float* const kv = d_out + TileFloats<kDepth>(kTile);  // values, then keys
  float* const d_s = kv + TileFloats<kDepth>(kTile);
  const AttentionSizes& sizes = args.sizes;
  const Work work = WorkOf(sizes, sizes.heads, true);
  const int kv_head = work.head / (sizes.heads / sizes.kv_heads);
  const int x = ThreadX(), y = ThreadY();

  LoadTile<kTile, kDepth>(q, args.q, work.batch, work.head, work.begin, sizes);
  LoadTile<kTile, kDepth>(d_out, args.d_out, work.batch, work.head, work.begin, sizes);
  float lse[4], delta[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = work.begin + y + 16 * i;
    const bool inside = t < sizes.length;
    lse[i] = inside ? args.lse.data[LseAt(args.lse, work.batch, work.head, t)] : 0;
    delta[i] = inside ? args.delta[(work.batch * sizes.heads + work.head) * sizes.length + t] : 0;
  }
  float d_q[4][Columns<kDepth>::kPerThread] = {};

  for (int keys = 0; keys <= work.begin; keys += kTile) {
    __syncthreads();
    LoadTile<kTile, kDepth>(kv, args.v, work.batch, kv_head, keys, sizes);
    __syncthreads();
    float d_p[4][4], s[4][4];
    DotRows<kDepth>(d_p, d_out, kv, sizes.depth);
    __syncthreads();
    LoadTile<kTile, kDepth>(kv, args.k, work.batch, kv_head, keys, sizes);
    __syncthreads();
    DotRows<kDepth>(s, q, kv, sizes.depth);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = work.begin + y + 16 * i;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool visible = keys + x + 16 * j <= t && t < sizes.length;
        d_s[(y + 16 * i) * kScoreLine + x + 16 * j] =
            GradientOf(visible, s[i][j], d_p[i][j], lse[i], delta[i], args.scale).d_s;
      }
    }
    __syncthreads();
    AddProduct<kDepth, kTile>(d_q, d_s, kv);
  }
  const float one[4] = {1, 1, 1, 1};
  StoreRows<kDepth>(args.d_q, work.batch, work.head, work.begin, sizes, d_q, one);
}

// Queries per step of the kernel over keys: with 256 columns, tiles of 64 would
// not fit into shared memory.
template <int kDepth>
inline constexpr int kQueries = kDepth > 128 ? 32 : 64;

template <int kDepth>
constexpr int KeyGradBytes() {
  constexpr int kQ = kQueries<kDepth>;
  return (2 * TileFloats<kDepth>(kTile) + 2 * TileFloats<kDepth>(kQ) + 2 * kTile * (kQ + 4) +
          2 * kQ) *
         4;
}

template <int kDepth>
__global__ void __launch_bounds__(kThreads) KeyGradKernel(const AttentionGradArgs args) {
  BeginKernel();
  constexpr int kQ = kQueries<kDepth>, kJ = kQ / 16, kLine = kQ + 4;
  extern __shared__ float4 shared[];
  float* const k = reinterpret_cast<float*>(shared);
  float* const v = k + TileFloats<kDepth>(kTile);
  float* const q = v + TileFloats<kDepth>(kTile);
  float* const d_out = q + TileFloats<kDepth>(kQ);
  float* const p = d_out + TileFloats<kDepth>(kQ);  // [key, query]
  float* const d_s = p + kTile * kLine;
  float* const lse = d_s + kTile * kLine;
  float* const delta = lse + kQ;
  const AttentionSizes& sizes = args.sizes;
  const Work work = WorkOf(sizes, sizes.kv_heads, false);
  const int group = sizes.heads / sizes.kv_heads;
  const int x = ThreadX(), y = ThreadY();

  LoadTile<kTile, kDepth>(k, args.k, work.batch, work.head, work.begin, sizes);
  LoadTile<kTile, kDepth>(v, args.v, work.batch, work.head, work.begin, sizes);
  float d_k[4][Columns<kDepth>::kPerThread] = {};
  float d_v[4][Columns<kDepth>::kPerThread] = {};

  for (int head = work.head * group; head < (work.head + 1) * group; ++head) {
    for (int queries = work.begin; queries < sizes.length; queries += kQ) {
      __syncthreads();
      LoadTile<kQ, kDepth>(q, args.q, work.batch, head, queries, sizes);
      LoadTile<kQ, kDepth>(d_out, args.d_out, work.batch, head, queries, sizes);
      if (threadIdx.x < kQ) {
        const int t = queries + static_cast<int>(threadIdx.x);
        const bool inside = t < sizes.length;
        lse[threadIdx.x] = inside ? args.lse.data[LseAt(args.lse, work.batch, head, t)] : 0;
        delta[threadIdx.x] =
            inside ? args.delta[(work.batch * sizes.heads + head) * sizes.length + t] : 0;
      }
      __syncthreads();
      float s[4][kJ], d_p[4][kJ];
      DotRows<kDepth>(s, k, q, sizes.depth);
      DotRows<kDepth>(d_p, v, d_out, sizes.depth);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int u = work.begin + y + 16 * i;
#pragma unroll
        for (int j = 0; j < kJ; ++j) {
          const int column = x + 16 * j, t = queries + column;
          const Gradient g = GradientOf(u <= t && t < sizes.length, s[i][j], d_p[i][j], lse[column],
                                        delta[column], args.scale);
          p[(y + 16 * i) * kLine + column] = g.p;
          d_s[(y + 16 * i) * kLine + column] = g.d_s;
        }
      }
      __syncthreads();
      AddProduct<kDepth, kQ>(d_v, p, d_out);
      AddProduct<kDepth, kQ>(d_k, d_s, q);
    }
  }
  const float one[4] = {1, 1, 1, 1};
  StoreRows<kDepth>(args.d_k, work.batch, work.head, work.begin, sizes, d_k, one);
  StoreRows<kDepth>(args.d_v, work.batch, work.head, work.begin, sizes, d_v, one);
}

template <class Args>
void Run(void (*kernel)(Args), int bytes, int64_t blocks, const Args& args, const Launch& launch) {
  MR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  LaunchKernel(launch, static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(bytes), kernel,
               args);
}

int64_t BlocksOf(const AttentionSizes& sizes, int heads) {
  return CeilDiv(sizes.length, kTile) * sizes.batch * heads;
}

template <int kDepth>
void Forward(const AttentionArgs& args, const Launch& launch) {
  Run(ForwardKernel<kDepth>, ForwardBytes<kDepth>(), BlocksOf(args.sizes, args.sizes.heads), args,
      launch);
}

template <int kDepth>
void Backward(const AttentionGradArgs& args, const Launch& launch) {
  Run(QueryGradKernel<kDepth>, QueryGradBytes<kDepth>(), BlocksOf(args.sizes, args.sizes.heads),
      args, launch);
  Run(KeyGradKernel<kDepth>, KeyGradBytes<kDepth>(), BlocksOf(args.sizes, args.sizes.kv_heads),
      args, launch);
}

// What a block may have on Hopper (and Blackwell): 227 KiB.
static_assert(ForwardBytes<256>() <= 227 * 1024 && QueryGradBytes<256>() <= 227 * 1024 &&
              KeyGradBytes<256>() <= 227 * 1024 && KeyGradBytes<128>() <= 227 * 1024);

}  // namespace

void LaunchAttention(const AttentionArgs& args, const Launch& launch) {
  const int depth = args.sizes.depth;
  depth <= 32    ? Forward<32>(args, launch)
  : depth <= 64  ? Forward<64>(args, launch)
  : depth <= 128 ? Forward<128>(args, launch)
                 : Forward<256>(args, launch);
}

void LaunchAttentionGrad(const AttentionGradArgs& args, const Launch& launch) {
  const int64_t rows = args.sizes.batch * args.sizes.heads * args.sizes.length;
  Run(DeltaKernel, 0, CeilDiv(rows, kThreads / 32), args, launch);
  const int depth = args.sizes.depth;
  depth <= 32    ? Backward<32>(args, launch)
  : depth <= 64  ? Backward<64>(args, launch)
  : depth <= 128 ? Backward<128>(args, launch)
                 : Backward<256>(args, launch);
}

}  // namespace millrace::cuda
