// The gradient of attention over packed documents, bf16 products on tensor cores: the formulas of
// attention_own.cu, in two kernels that add up in orders of their own, so the same bits every time.
//
//   d_q  A block keeps 128 queries and walks over the keys that they see, as forward does. It comes
//        first, and writes delta = d_out . out.
//   d_k, d_v  A block keeps keys, and walks over the queries that see any: from its first key to
//        the last row whose document covers its last one, of each head of the group. Scores lie
//        transposed in registers, keys by queries: so p and d_s are operands as they are.
//
// p and d_s are rounded to bf16 before they enter a product; the scale is applied to sums.
#include "kernels/cuda/attention/attention_packed.cuh"

namespace millrace::cuda {
namespace {

__device__ __forceinline__ float* DeltaOf(const AttentionGradArgs& a, int64_t b, int head) {
  return a.delta + (b * a.sizes.heads + head) * a.sizes.length;
}
__device__ __forceinline__ const float* LseOf(const AttentionGradArgs& a, int64_t b, int head) {
  return a.lse.data + b * a.lse.batch_stride + head * a.lse.head_stride;
}

// ---- d_q

constexpr int kQueryTiles = 2, kQueries = kPackedWarps * kQueryTiles * 16;
// Keys whose scores a warp has in registers at a time.
constexpr int kKeyStep = 32;

template <int kDepth>
struct QueryShared {
  static constexpr int kStageKeys = kDepth == 64 ? 64 : 32;
  struct Stage {
    uint16_t keys[kStageKeys * kDepth], values[kStageKeys * kDepth];
  };
  uint16_t queries[kQueries * kDepth], d_out[kQueries * kDepth];
  Stage stages[2];
  float delta[kQueries];
};

// delta[r] = d_out . out of rows [row, end), and to a.delta; `kPieces` threads per row.
template <int kDepth>
__device__ __forceinline__ void FindDelta(const AttentionGradArgs& a, const PackedQueries& work,
                                          int end, float* delta) {
  constexpr int kPieces = kDepth / kPack, kAtOnce = kPackedThreads / kPieces;
  const int piece = static_cast<int>(threadIdx.x) % kPieces,
            first = static_cast<int>(threadIdx.x) / kPieces;
  const HeadRows out = RowsOf(a.out, work.batch, work.head),
                 d_out = RowsOf(a.d_out, work.batch, work.head);
  float* const to = DeltaOf(a, work.batch, work.head);
#pragma unroll 4
  for (int r = first; r < kQueries; r += kAtOnce) {
    const int row = work.row + r;
    float sum = 0;
    if (row < end && piece * kPack < a.sizes.depth) {
      const Rows any{.bf16 = true, .wide = true};
      const auto load = [&](const HeadRows& x) {
        const Raw<Elements::kBF16> raw{
            *reinterpret_cast<const uint4*>(x.data + row * x.stride + piece * kPack)};
        return ToFloats<Elements::kBF16>(any, raw);
      };
      const Floats x = load(out), y = load(d_out);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum = fmaf(x.v[i], y.v[i], sum);
    }
#pragma unroll
    for (int lane = kPieces / 2; lane > 0; lane /= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    if (piece != 0) continue;
    delta[r] = sum;
    if (row < end) to[row] = sum;
  }
}

// What a lane's queries have: lse as an exponent of 2, and delta.
struct QueryRows {
  float lse[kQueryTiles][2], delta[kQueryTiles][2];
};

// Scores become d_s.
__device__ __forceinline__ void ScoreGradients(Scores<kQueryTiles, kKeyStep>& scores,
                                               const Scores<kQueryTiles, kKeyStep>& d_p,
                                               const SeenKeys<kQueryTiles>& seen,
                                               const QueryRows& rows, int key, float scale) {
  const bool all = seen.All(key, kKeyStep);
#pragma unroll
  for (int t = 0; t < kQueryTiles; ++t)
#pragma unroll
    for (int n = 0; n < kKeyStep / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = Exp2(fmaf(scores[t][n][i], scale, -rows.lse[t][i / 2]));
        const bool sees = all || seen.Sees(t, i / 2, key + ColumnOf(n, i));
        scores[t][n][i] = sees ? p * (d_p[t][n][i] - rows.delta[t][i / 2]) : 0.0f;
      }
}

template <int kDepth>
__global__ void __launch_bounds__(kPackedThreads, kPackedBlocks<kDepth>)
    QueryGradKernel(const __grid_constant__ AttentionGradArgs a) {
  BeginKernel();
  using Memory = QueryShared<kDepth>;
  constexpr int kStageKeys = Memory::kStageKeys;
  extern __shared__ __align__(1024) std::byte memory[];
  Memory& shared = *reinterpret_cast<Memory*>(memory);
  const PackedQueries work = PackedQueriesOf<kQueries>(a.sizes);
  const int end = min(work.row + kQueries, a.sizes.length), depth = a.sizes.depth;
  const HeadRows k = RowsOf(a.k, work.batch, work.kv_head),
                 v = RowsOf(a.v, work.batch, work.kv_head);
  const auto copy = [&](int stage, int key) {
    CopyRows<kDepth, kStageKeys>(SharedAddress(shared.stages[stage].keys), k, key, end, depth);
    CopyRows<kDepth, kStageKeys>(SharedAddress(shared.stages[stage].values), v, key, end, depth);
    CommitCopies();
  };
  CopyRows<kDepth, kQueries>(SharedAddress(shared.queries), RowsOf(a.q, work.batch, work.head),
                             work.row, end, depth);
  CopyRows<kDepth, kQueries>(SharedAddress(shared.d_out), RowsOf(a.d_out, work.batch, work.head),
                             work.row, end, depth);
  int key = FirstKey(a.sizes, work.batch, work.row);
  copy(0, key);
  FindDelta<kDepth>(a, work, end, shared.delta);
  __syncthreads();

  const int row = work.row + WarpOfBlock() * kQueryTiles * 16;
  const SeenKeys<kQueryTiles> seen(a.sizes, work.batch, row, end);
  const float scale = a.scale * kLog2E;
  QueryRows rows;
#pragma unroll
  for (int t = 0; t < kQueryTiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = row + t * 16 + half * 8 + Lane() / 4;
      const float* const lse = LseOf(a, work.batch, work.head);
      rows.lse[t][half] = at < end ? lse[at * a.lse.row_stride] * kLog2E : 0.0f;
      rows.delta[t][half] = shared.delta[at - work.row];
    }
  const Queries<kDepth, kQueryTiles, false> queries(SharedAddress(shared.queries)),
      d_out(SharedAddress(shared.d_out));
  Sums<kDepth, kQueryTiles> d_q = {};
  for (int stage = 0; key < end; key += kStageKeys, stage ^= 1) {
    WaitCopies<0>();
    __syncthreads();
    if (key + kStageKeys < end) copy(stage ^ 1, key + kStageKeys);
#pragma unroll 1
    for (int part = 0; part < kStageKeys; part += kKeyStep) {
      if (!seen.Any(key + part, kKeyStep)) continue;
      const uint32_t keys = SharedAddress(shared.stages[stage].keys + part * kDepth),
                     values = SharedAddress(shared.stages[stage].values + part * kDepth);
      Scores<kQueryTiles, kKeyStep> scores = {}, d_p = {};
      MultiplyKeys(scores, queries, keys);
      MultiplyKeys(d_p, d_out, values);
      ScoreGradients(scores, d_p, seen, rows, key + part, scale);
      AddValues<kDepth>(d_q, scores, keys);
    }
  }
  float factor[kQueryTiles][2];
#pragma unroll
  for (int t = 0; t < kQueryTiles; ++t) factor[t][0] = factor[t][1] = a.scale;
  StoreSums<kDepth, kQueryTiles>(RowsOf(a.d_q, work.batch, work.head), row, end, depth, d_q,
                                 factor);
}

// ---- d_k, d_v

// Queries whose scores a warp has in registers at a time, and of a stage.
constexpr int kQueryStep = 32, kStageQueries = 64;

template <int kDepth>
struct KeyShared {
  static constexpr int kTiles = 1;  // of 16 keys per warp
  static constexpr int kBlockKeys = kPackedWarps * kTiles * 16;
  struct Stage {
    uint16_t queries[kStageQueries * kDepth], d_out[kStageQueries * kDepth];
    float lse[kStageQueries], delta[kStageQueries];
    int first[kStageQueries];  // keys that they see
  };
  uint16_t keys[kBlockKeys * kDepth], values[kBlockKeys * kDepth];
  Stage stages[2];
};

// Which keys of which key/value head a block works on. Of a head, earlier ones are seen by more.
struct PackedKeys {
  int64_t batch;
  int kv_head, begin;
};
template <int kBlockKeys>
__device__ __forceinline__ PackedKeys PackedKeysOf(const AttentionSizes& sizes) {
  const int tiles = (sizes.length + kBlockKeys - 1) / kBlockKeys,
            tile = static_cast<int>(blockIdx.x) % tiles,
            rest = static_cast<int>(blockIdx.x) / tiles;
  return {rest / sizes.kv_heads, rest % sizes.kv_heads, tile * kBlockKeys};
}

// The first position from `low` on whose query sees no key in front of `key`; the length if there
// is none. Each lane asks one of 32 at a time.
__device__ __forceinline__ int EndOfQueries(const AttentionSizes& sizes, int64_t b, int low,
                                            int key) {
  int high = sizes.length;
  while (low < high) {
    const int step = (high - low + kWarp - 1) / kWarp, t = low + (Lane() + 1) * step - 1;
    const unsigned beyond = __ballot_sync(0xffffffffu, t >= high || FirstKey(sizes, b, t) >= key);
    const int n = beyond == 0 ? kWarp : __ffs(static_cast<int>(beyond)) - 1;
    const int from = low + n * step;
    if (n < kWarp) high = min(high, from + step - 1);
    low = min(from, high);
  }
  return low;
}

__device__ __forceinline__ void CopyAsync4(void* shared, const void* global, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :
               : "r"(SharedAddress(shared)), "l"(global), "r"(inside ? 4 : 0)
               : "memory");
}

// The first key that this thread's query of a stage from `row` on sees; none from `end` on.
__device__ __forceinline__ int FirstKeyOfStage(const AttentionSizes& sizes, int64_t b, int row,
                                               int end) {
  const int at = row + static_cast<int>(threadIdx.x) % kStageQueries;
  return at < end ? FirstKey(sizes, b, at) : INT_MAX;
}

// Begins to copy queries [row, row + kStageQueries) of a head, and what belongs to them; zeros from
// `end` on.
template <int kDepth>
__device__ __forceinline__ void CopyQueries(typename KeyShared<kDepth>::Stage& stage,
                                            const AttentionGradArgs& a, int64_t b, int head,
                                            int row, int end, int first_key) {
  const int depth = a.sizes.depth;
  CopyRows<kDepth, kStageQueries>(SharedAddress(stage.queries), RowsOf(a.q, b, head), row, end,
                                  depth);
  CopyRows<kDepth, kStageQueries>(SharedAddress(stage.d_out), RowsOf(a.d_out, b, head), row, end,
                                  depth);
  const int r = static_cast<int>(threadIdx.x) % kStageQueries, at = row + r;
  const bool inside = at < end;
  static_assert(kPackedThreads == 2 * kStageQueries);
  if (threadIdx.x < kStageQueries) {
    const float* const lse = LseOf(a, b, head);
    CopyAsync4(&stage.lse[r], inside ? lse + at * a.lse.row_stride : lse, inside);
    stage.first[r] = first_key;
  } else {
    const float* const delta = DeltaOf(a, b, head);
    CopyAsync4(&stage.delta[r], inside ? delta + at : delta, inside);
  }
}

// Of kTiles*16 keys from `key` on and kQueryStep queries from `row`, the stage's from `part` on:
// scores become p, d_p becomes d_s.
template <int kTiles, class Stage>
__device__ __forceinline__ void KeyGradients(Scores<kTiles, kQueryStep>& scores,
                                             Scores<kTiles, kQueryStep>& d_p, const Stage& stage,
                                             int part, int row, int key, float scale) {
  // The last query's first key is the largest, and INT_MAX behind the end.
  const bool all = row >= key + kTiles * 16 - 1 && stage.first[part + kQueryStep - 1] <= key;
#pragma unroll
  for (int n = 0; n < kQueryStep / 8; ++n) {
    float lse[2], delta[2];
    int first[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = part + ColumnOf(n, i);
      lse[i] = stage.lse[column] * kLog2E, delta[i] = stage.delta[column];
      first[i] = stage.first[column];
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int u = key + t * 16 + i / 2 * 8 + Lane() / 4;
        const bool sees = all || (u >= first[i % 2] && u <= row + ColumnOf(n, i));
        const float p = sees ? Exp2(fmaf(scores[t][n][i], scale, -lse[i % 2])) : 0.0f;
        scores[t][n][i] = p;
        d_p[t][n][i] = p * (d_p[t][n][i] - delta[i % 2]);
      }
  }
}

template <int kDepth>
__global__ void __launch_bounds__(kPackedThreads, kPackedBlocks<kDepth>)
    KeyGradKernel(const __grid_constant__ AttentionGradArgs a) {
  BeginKernel();
  using Memory = KeyShared<kDepth>;
  constexpr int kTiles = Memory::kTiles, kBlockKeys = Memory::kBlockKeys;
  extern __shared__ __align__(1024) std::byte memory[];
  Memory& shared = *reinterpret_cast<Memory*>(memory);
  const AttentionSizes& sizes = a.sizes;
  const PackedKeys work = PackedKeysOf<kBlockKeys>(sizes);
  const int end = min(work.begin + kBlockKeys, sizes.length);
  CopyRows<kDepth, kBlockKeys>(SharedAddress(shared.keys), RowsOf(a.k, work.batch, work.kv_head),
                               work.begin, end, sizes.depth);
  CopyRows<kDepth, kBlockKeys>(SharedAddress(shared.values), RowsOf(a.v, work.batch, work.kv_head),
                               work.begin, end, sizes.depth);
  // Of each head of the group, queries [begin, end_row) in `steps` stages.
  const int end_row = EndOfQueries(sizes, work.batch, work.begin, end),
            group = sizes.heads / sizes.kv_heads,
            steps = (end_row - work.begin + kStageQueries - 1) / kStageQueries;
  int next_head = work.kv_head * group, next_row = work.begin;
  // Read a stage ahead: nothing waits for it.
  int first_key = FirstKeyOfStage(sizes, work.batch, next_row, end_row);
  const auto copy = [&](int stage) {
    CopyQueries<kDepth>(shared.stages[stage], a, work.batch, next_head, next_row, end_row,
                        first_key);
    CommitCopies();
    next_row += kStageQueries;
    if (next_row >= end_row) next_row = work.begin, ++next_head;
    first_key = FirstKeyOfStage(sizes, work.batch, next_row, end_row);
  };
  copy(0);

  const int key = work.begin + WarpOfBlock() * kTiles * 16;
  const float scale = a.scale * kLog2E;
  const Queries<kDepth, kTiles, false> keys(SharedAddress(shared.keys)),
      values(SharedAddress(shared.values));
  Sums<kDepth, kTiles> d_k = {}, d_v = {};
  int row = work.begin;
  for (int step = 0, stage = 0; step < group * steps; ++step, stage ^= 1) {
    WaitCopies<0>();
    __syncthreads();
    if (step + 1 < group * steps) copy(stage ^ 1);
    const auto& now = shared.stages[stage];
#pragma unroll 1
    for (int part = 0; part < kStageQueries; part += kQueryStep) {
      const int at = row + part;
      // Queries in front of all keys, or of documents behind them.
      if (at + kQueryStep - 1 < key || now.first[part] >= key + kTiles * 16) continue;
      const uint32_t queries = SharedAddress(now.queries + part * kDepth),
                     d_out = SharedAddress(now.d_out + part * kDepth);
      Scores<kTiles, kQueryStep> scores = {}, d_p = {};
      MultiplyKeys(scores, keys, queries);
      MultiplyKeys(d_p, values, d_out);
      KeyGradients<kTiles>(scores, d_p, now, part, at, key, scale);
      AddValues<kDepth>(d_v, scores, d_out);
      AddValues<kDepth>(d_k, d_p, queries);
    }
    row += kStageQueries;
    if (row >= end_row) row = work.begin;
  }
  float factor[kTiles][2];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) factor[t][0] = factor[t][1] = 1;
  StoreSums<kDepth, kTiles>(RowsOf(a.d_v, work.batch, work.kv_head), key, end, sizes.depth, d_v,
                            factor);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) factor[t][0] = factor[t][1] = a.scale;
  StoreSums<kDepth, kTiles>(RowsOf(a.d_k, work.batch, work.kv_head), key, end, sizes.depth, d_k,
                            factor);
}

template <int kDepth>
void Backward(const AttentionGradArgs& args, const Launch& launch) {
  LaunchPacked(QueryGradKernel<kDepth>, sizeof(QueryShared<kDepth>), args, kQueries,
               args.sizes.heads, launch);
  LaunchPacked(KeyGradKernel<kDepth>, sizeof(KeyShared<kDepth>), args,
               KeyShared<kDepth>::kBlockKeys, args.sizes.kv_heads, launch);
}

}  // namespace

void LaunchPackedAttentionGrad(const AttentionGradArgs& args, const Launch& launch) {
  args.sizes.depth <= 64 ? Backward<64>(args, launch) : Backward<128>(args, launch);
}

}  // namespace millrace::cuda
