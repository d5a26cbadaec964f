// Attention over packed documents, forward: bf16 products on tensor cores after FlashAttention-2
// (arXiv 2307.08691). A block keeps 64 or 128 queries and walks over the keys that any of them
// sees, from the first one's document on; a warp has a quarter of them and passes over tiles that
// none of its own sees. Sums are f32. Weights are rounded to bf16 before they multiply values, and
// summed before.
#include "kernels/cuda/attention/attention_packed.cuh"

namespace millrace::cuda {
namespace {

template <int kDepth>
struct Shared {
  static constexpr int kTiles = kDepth == 64 ? 1 : 2;  // of 16 queries per warp
  static constexpr int kQueries = kPackedWarps * kTiles * 16;
  struct Stage {
    uint16_t keys[kKeys * kDepth], values[kKeys * kDepth];
  };
  uint16_t queries[kQueries * kDepth];
  Stage stages[2];
};

// Scores of keys from `key` on that a query does not see become -inf.
template <int kTiles>
__device__ __forceinline__ void Mask(Scores<kTiles>& scores, const SeenKeys<kTiles>& seen,
                                     int key) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (!seen.Sees(t, i / 2, key + ColumnOf(n, i))) scores[t][n][i] = -INFINITY;
}

// lse = log of the sum of exponentials: `factor` becomes 1 / sum.
template <int kTiles>
__device__ __forceinline__ void Finish(const AttentionArgs& a, const PackedQueries& work, int row,
                                       int end, const OnlineSoftmax<kTiles>& softmax,
                                       float (&factor)[kTiles][2]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = softmax.Total(t, half);
      factor[t][half] = 1 / total;
      const int at = row + t * 16 + half * 8 + Lane() / 4;
      if (a.lse.data == nullptr || at >= end || Lane() % 4 != 0) continue;
      a.lse.data[work.batch * a.lse.batch_stride + work.head * a.lse.head_stride +
                 at * a.lse.row_stride] = softmax.most[t][half] * a.scale + logf(total);
    }
}

template <int kDepth>
__global__ void __launch_bounds__(kPackedThreads, kPackedBlocks<kDepth>)
    ForwardKernel(const __grid_constant__ AttentionArgs a) {
  BeginKernel();
  constexpr int kTiles = Shared<kDepth>::kTiles, kQueries = Shared<kDepth>::kQueries;
  extern __shared__ __align__(1024) std::byte memory[];
  Shared<kDepth>& shared = *reinterpret_cast<Shared<kDepth>*>(memory);
  const PackedQueries work = PackedQueriesOf<kQueries>(a.sizes);
  const int end = min(work.row + kQueries, a.sizes.length), depth = a.sizes.depth;
  const HeadRows k = RowsOf(a.k, work.batch, work.kv_head),
                 v = RowsOf(a.v, work.batch, work.kv_head);
  const auto copy = [&](int stage, int key) {
    CopyRows<kDepth, kKeys>(SharedAddress(shared.stages[stage].keys), k, key, end, depth);
    CopyRows<kDepth, kKeys>(SharedAddress(shared.stages[stage].values), v, key, end, depth);
    CommitCopies();
  };
  CopyRows<kDepth, kQueries>(SharedAddress(shared.queries), RowsOf(a.q, work.batch, work.head),
                             work.row, end, depth);
  int key = FirstKey(a.sizes, work.batch, work.row);
  copy(0, key);

  const int row = work.row + WarpOfBlock() * kTiles * 16;
  const SeenKeys<kTiles> seen(a.sizes, work.batch, row, end);
  const float scale = a.scale * kLog2E;
  Queries<kDepth, kTiles> queries(SharedAddress(shared.queries));
  OnlineSoftmax<kTiles> softmax;
  softmax.Clear();
  Sums<kDepth, kTiles> sums = {};
  bool held = false;
  for (int stage = 0; key < end; key += kKeys, stage ^= 1) {
    WaitCopies<0>();
    __syncthreads();
    if (!held) queries.Hold();
    held = true;
    if (key + kKeys < end) copy(stage ^ 1, key + kKeys);  // comes in while these are met
    if (!seen.Any(key, kKeys)) continue;
    Scores<kTiles> scores = {};
    MultiplyKeys(scores, queries, SharedAddress(shared.stages[stage].keys));
    if (!seen.All(key, kKeys)) Mask(scores, seen, key);
    Weigh<kDepth, kTiles>(scores, softmax, sums, scale);
    AddValues<kDepth>(sums, scores, SharedAddress(shared.stages[stage].values));
  }
  float factor[kTiles][2];
  Finish(a, work, row, end, softmax, factor);
  StoreSums<kDepth, kTiles>(RowsOf(a.out, work.batch, work.head), row, end, depth, sums, factor);
}

template <int kDepth>
void Forward(const AttentionArgs& args, const Launch& launch) {
  LaunchPacked(ForwardKernel<kDepth>, sizeof(Shared<kDepth>), args, Shared<kDepth>::kQueries,
               args.sizes.heads, launch);
}

}  // namespace

void LaunchPackedAttention(const AttentionArgs& args, const Launch& launch) {
  args.sizes.depth <= 64 ? Forward<64>(args, launch) : Forward<128>(args, launch);
}

}  // namespace millrace::cuda
