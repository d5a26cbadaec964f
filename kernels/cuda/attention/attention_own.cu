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
#include "kernels/cuda/dispatch.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/launch.cuh"

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
// Of queries: rows [row, end) of the operands, the first at `position`; end is their chunk's.
struct QueryWork {
  int row, end, position, head;
  int64_t batch;

  __device__ int rows() const { return end - row < kTile ? end - row : kTile; }
};
__device__ __forceinline__ QueryWork QueriesOf(const AttentionSizes& sizes) {
  const int64_t per_tile = sizes.batch * sizes.heads, rest = blockIdx.x % per_tile;
  const int tiles = Tiles(sizes.chunk);
  const int tile = sizes.chunks * tiles - 1 - static_cast<int>(blockIdx.x / per_tile);
  const int chunk = tile / tiles, at = tile % tiles * kTile;
  return {chunk * sizes.chunk + at, (chunk + 1) * sizes.chunk, sizes.start[chunk] + at,
          static_cast<int>(rest % sizes.heads), rest / sizes.heads};
}

// The first position of the document of position t; 0 where a sequence is one.
__device__ __forceinline__ int DocumentOf(const AttentionSizes& sizes, int64_t b, int t) {
  if (sizes.documents == nullptr) return 0;
  return sizes.documents[b * sizes.length + min(t, sizes.length - 1)];
}
// Whether the query at position t, of the document that begins with `first`, sees the key at u.
__device__ __forceinline__ bool Sees(const AttentionSizes& sizes, int first, int t, int u) {
  return u <= t && u >= first && (sizes.window == 0 || u > t - sizes.window);
}
// The tile of keys that the query at position t, and so those behind it, begin with.
__device__ __forceinline__ int FirstTile(const AttentionSizes& sizes, int64_t b, int t) {
  const int window = sizes.window == 0 || t < sizes.window ? 0 : t - sizes.window + 1;
  return max(window, DocumentOf(sizes, b, t)) / kTile * kTile;
}

// Of keys: positions from `begin`.
struct KeyWork {
  int begin, head;
  int64_t batch;
};
__device__ __forceinline__ KeyWork KeysOf(const AttentionSizes& sizes) {
  const int64_t per_tile = sizes.batch * sizes.kv_heads, rest = blockIdx.x % per_tile;
  return {static_cast<int>(blockIdx.x / per_tile) * kTile, static_cast<int>(rest % sizes.kv_heads),
          rest / sizes.kv_heads};
}

template <int kDepth>
constexpr int ForwardBytes() {
  return (2 * TileFloats<kDepth>(kTile) + kTile * kScoreLine) * 4;
}

template <Elements Mix, int kDepth>
__global__ void __launch_bounds__(kThreads) ForwardKernel(const AttentionArgs args) {
  BeginKernel();
  extern __shared__ float4 shared[];
  float* const q = reinterpret_cast<float*>(shared);
  float* const kv = q + TileFloats<kDepth>(kTile);  // keys, then values
  float* const weights = kv + TileFloats<kDepth>(kTile);
  const AttentionSizes& sizes = args.sizes;
  const QueryWork work = QueriesOf(sizes);
  const int kv_head = work.head / (sizes.heads / sizes.kv_heads);
  const int x = ThreadX(), y = ThreadY();

  LoadQueries<Mix, kTile, kDepth>(q, args.q, work.batch, work.head, work.row, work.end,
                                  sizes.depth);
  float out[4][Columns<kDepth>::kPerThread] = {};
  float max[4], sum[4];
  int first[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    max[i] = -INFINITY, sum[i] = 0;
    first[i] = DocumentOf(sizes, work.batch, work.position + y + 16 * i);
  }

  for (int keys = FirstTile(sizes, work.batch, work.position); keys < work.position + work.rows();
       keys += kTile) {
    __syncthreads();
    LoadKeys<Mix, kTile, kDepth>(kv, args.k, work.batch, kv_head, keys, sizes);
    __syncthreads();
    float s[4][4];
    DotRows<kDepth>(s, q, kv, sizes.depth);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = work.position + y + 16 * i;
      const float max_before = max[i];
      float tile_max = -INFINITY;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[i][j] = Sees(sizes, first[i], t, keys + x + 16 * j) ? s[i][j] * args.scale : -INFINITY;
        tile_max = fmaxf(tile_max, s[i][j]);
      }
      // Without a window every row sees key 0, so the maximum is finite from the first tile on.
      // With one, or with documents, a row may see nothing yet: all terms are zero, whatever they
      // are shifted by.
      max[i] = fmaxf(max_before, RowMax(tile_max));
      const float new_max = max[i] == -INFINITY ? 0.0f : max[i];
      const float shrink = expf(max_before - new_max);
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
    LoadKeys<Mix, kTile, kDepth>(kv, args.v, work.batch, kv_head, keys, sizes);
    __syncthreads();
    AddProduct<kDepth, kTile>(out, weights, kv);
  }

  float inverse[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    inverse[i] = 1.0f / sum[i];
    const int row = work.row + y + 16 * i;
    if (args.lse.data != nullptr && x == 0 && row < work.end)
      args.lse.data[LseAt(args.lse, work.batch, work.head, row)] = max[i] + logf(sum[i]);
  }
  StoreRows<Mix, kDepth>(args.out, work.rows(), sizes.depth, out, inverse, [&](int r) {
    return RowAt(args.out, work.batch, work.row + r, work.head);
  });
}

// delta[b,h,r] = d_out[b,r,h,:] . out[b,r,h,:], a warp per row.
template <Elements Mix>
__global__ void __launch_bounds__(kThreads) DeltaKernel(const AttentionGradArgs args) {
  BeginKernel();
  const AttentionSizes& sizes = args.sizes;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int rows = sizes.chunks * sizes.chunk;
  if (row >= sizes.batch * sizes.heads * rows) return;
  const int t = static_cast<int>(row % rows), lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t rest = row / rows;
  const int h = static_cast<int>(rest % sizes.heads);
  const int64_t b = rest / sizes.heads;
  const int64_t a = RowAt(args.d_out, b, t, h), c = RowAt(args.out, b, t, h);
  float sum = 0;
  for (int d = lane; d < sizes.depth; d += 32)
    sum = fmaf(LoadOne<Mix>(args.d_out, a + d), LoadOne<Mix>(args.out, c + d), sum);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (lane == 0) args.delta[row] = sum;
}

__device__ __forceinline__ int64_t DeltaAt(const AttentionSizes& sizes, int64_t b, int h, int row) {
  return (b * sizes.heads + h) * sizes.chunks * sizes.chunk + row;
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

template <Elements Mix, int kDepth>
__global__ void __launch_bounds__(kThreads) QueryGradKernel(const AttentionGradArgs args) {
  BeginKernel();
  extern __shared__ float4 shared[];
  float* const q = reinterpret_cast<float*>(shared);
  float* const d_out = q + TileFloats<kDepth>(kTile);
  float* const kv = d_out + TileFloats<kDepth>(kTile);  // values, then keys
  float* const d_s = kv + TileFloats<kDepth>(kTile);
  const AttentionSizes& sizes = args.sizes;
  const QueryWork work = QueriesOf(sizes);
  const int kv_head = work.head / (sizes.heads / sizes.kv_heads);
  const int x = ThreadX(), y = ThreadY();

  LoadQueries<Mix, kTile, kDepth>(q, args.q, work.batch, work.head, work.row, work.end,
                                  sizes.depth);
  LoadQueries<Mix, kTile, kDepth>(d_out, args.d_out, work.batch, work.head, work.row, work.end,
                                  sizes.depth);
  float lse[4], delta[4];
  int first[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = work.row + y + 16 * i;
    first[i] = DocumentOf(sizes, work.batch, work.position + y + 16 * i);
    const bool inside = row < work.end;
    lse[i] = inside ? args.lse.data[LseAt(args.lse, work.batch, work.head, row)] : 0;
    delta[i] = inside ? args.delta[DeltaAt(sizes, work.batch, work.head, row)] : 0;
  }
  float d_q[4][Columns<kDepth>::kPerThread] = {};

  for (int keys = FirstTile(sizes, work.batch, work.position); keys < work.position + work.rows();
       keys += kTile) {
    __syncthreads();
    LoadKeys<Mix, kTile, kDepth>(kv, args.v, work.batch, kv_head, keys, sizes);
    __syncthreads();
    float d_p[4][4], s[4][4];
    DotRows<kDepth>(d_p, d_out, kv, sizes.depth);
    __syncthreads();
    LoadKeys<Mix, kTile, kDepth>(kv, args.k, work.batch, kv_head, keys, sizes);
    __syncthreads();
    DotRows<kDepth>(s, q, kv, sizes.depth);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = y + 16 * i, t = work.position + r;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool visible = Sees(sizes, first[i], t, keys + x + 16 * j) && r < work.rows();
        d_s[(y + 16 * i) * kScoreLine + x + 16 * j] =
            GradientOf(visible, s[i][j], d_p[i][j], lse[i], delta[i], args.scale).d_s;
      }
    }
    __syncthreads();
    AddProduct<kDepth, kTile>(d_q, d_s, kv);
  }
  const float one[4] = {1, 1, 1, 1};
  StoreRows<Mix, kDepth>(args.d_q, work.rows(), sizes.depth, d_q, one, [&](int r) {
    return RowAt(args.d_q, work.batch, work.row + r, work.head);
  });
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

template <Elements Mix, int kDepth>
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
  const KeyWork work = KeysOf(sizes);
  const int group = sizes.heads / sizes.kv_heads;
  const int x = ThreadX(), y = ThreadY();

  LoadKeys<Mix, kTile, kDepth>(k, args.k, work.batch, work.head, work.begin, sizes);
  LoadKeys<Mix, kTile, kDepth>(v, args.v, work.batch, work.head, work.begin, sizes);
  float d_k[4][Columns<kDepth>::kPerThread] = {};
  float d_v[4][Columns<kDepth>::kPerThread] = {};

  for (int head = work.head * group; head < (work.head + 1) * group; ++head) {
    for (int chunk = 0; chunk < sizes.chunks; ++chunk) {
      const int start = sizes.start[chunk], end = (chunk + 1) * sizes.chunk;
      // The first queries of the chunk that see one of these keys.
      const int skipped = work.begin > start ? (work.begin - start) / kQ * kQ : 0;
      // Behind the last that sees one.
      const int last = work.begin + kTile - 1 + sizes.window - start + chunk * sizes.chunk;
      const int stop = sizes.window == 0 || last > end ? end : last;
      for (int row = chunk * sizes.chunk + skipped; row < stop; row += kQ) {
        // No query from a document behind these keys on sees them.
        if (DocumentOf(sizes, work.batch, row) >= work.begin + kTile) break;
        __syncthreads();
        LoadQueries<Mix, kQ, kDepth>(q, args.q, work.batch, head, row, end, sizes.depth);
        LoadQueries<Mix, kQ, kDepth>(d_out, args.d_out, work.batch, head, row, end, sizes.depth);
        if (threadIdx.x < kQ) {
          const int at = row + static_cast<int>(threadIdx.x);
          const bool inside = at < end;
          lse[threadIdx.x] = inside ? args.lse.data[LseAt(args.lse, work.batch, head, at)] : 0;
          delta[threadIdx.x] = inside ? args.delta[DeltaAt(sizes, work.batch, head, at)] : 0;
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
            const int column = x + 16 * j, at = row + column;
            const int t = start + at - chunk * sizes.chunk;
            const bool visible = Sees(sizes, DocumentOf(sizes, work.batch, t), t, u) && at < end;
            const Gradient g =
                GradientOf(visible, s[i][j], d_p[i][j], lse[column], delta[column], args.scale);
            p[(y + 16 * i) * kLine + column] = g.p;
            d_s[(y + 16 * i) * kLine + column] = g.d_s;
          }
        }
        __syncthreads();
        AddProduct<kDepth, kQ>(d_v, p, d_out);
        AddProduct<kDepth, kQ>(d_k, d_s, q);
      }
    }
  }
  const float one[4] = {1, 1, 1, 1};
  const int keys = sizes.length - work.begin;
  StoreRows<Mix, kDepth>(args.d_k, keys, sizes.depth, d_k, one, [&](int r) {
    return KeyAt(args.d_k, sizes, work.batch, work.begin + r, work.head);
  });
  StoreRows<Mix, kDepth>(args.d_v, keys, sizes.depth, d_v, one, [&](int r) {
    return KeyAt(args.d_v, sizes, work.batch, work.begin + r, work.head);
  });
}

template <class Args>
void Run(void (*kernel)(Args), int bytes, int64_t blocks, const Args& args, const Launch& launch) {
  MR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  LaunchKernel(launch, static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(bytes), kernel,
               args);
}

int64_t QueryBlocks(const AttentionSizes& sizes) {
  return sizes.chunks * CeilDiv(sizes.chunk, kTile) * sizes.batch * sizes.heads;
}
int64_t KeyBlocks(const AttentionSizes& sizes) {
  return CeilDiv(sizes.length, kTile) * sizes.batch * sizes.kv_heads;
}

template <Elements Mix, int kDepth>
void Forward(const AttentionArgs& args, const Launch& launch) {
  Run(ForwardKernel<Mix, kDepth>, ForwardBytes<kDepth>(), QueryBlocks(args.sizes), args, launch);
}

template <Elements Mix, int kDepth>
void Backward(const AttentionGradArgs& args, const Launch& launch) {
  Run(QueryGradKernel<Mix, kDepth>, QueryGradBytes<kDepth>(), QueryBlocks(args.sizes), args,
      launch);
  Run(KeyGradKernel<Mix, kDepth>, KeyGradBytes<kDepth>(), KeyBlocks(args.sizes), args, launch);
}

// What a block may have on Hopper (and Blackwell): 227 KiB.
static_assert(ForwardBytes<256>() <= 227 * 1024 && QueryGradBytes<256>() <= 227 * 1024 &&
              KeyGradBytes<256>() <= 227 * 1024 && KeyGradBytes<128>() <= 227 * 1024);

}  // namespace

void LaunchAttention(const AttentionArgs& args, Elements mix, const Launch& launch) {
  const int depth = args.sizes.depth;
  WithMixOf(mix, [&]<Elements Mix>() {
    depth <= 32    ? Forward<Mix, 32>(args, launch)
    : depth <= 64  ? Forward<Mix, 64>(args, launch)
    : depth <= 128 ? Forward<Mix, 128>(args, launch)
                   : Forward<Mix, 256>(args, launch);
  });
}

void LaunchAttentionGrad(const AttentionGradArgs& args, Elements mix, const Launch& launch) {
  const AttentionSizes& sizes = args.sizes;
  const int64_t rows = sizes.batch * sizes.heads * sizes.chunks * sizes.chunk;
  const int depth = args.sizes.depth;
  WithMixOf(mix, [&]<Elements Mix>() {
    Run(DeltaKernel<Mix>, 0, CeilDiv(rows, kThreads / 32), args, launch);
    depth <= 32    ? Backward<Mix, 32>(args, launch)
    : depth <= 64  ? Backward<Mix, 64>(args, launch)
    : depth <= 128 ? Backward<Mix, 128>(args, launch)
                   : Backward<Mix, 256>(args, launch);
  });
}

}  // namespace millrace::cuda
