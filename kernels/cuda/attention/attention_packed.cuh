// What the kernels of attention_packed*.cu share: which keys a query sees, and how rows of heads
// come to tiles (attention_tiles.cuh) and go from sums.
#pragma once

#include <climits>

#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/tensor_cores/attention_tiles.cuh"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {

inline constexpr int kPackedThreads = 128, kPackedWarps = kPackedThreads / kWarp;

// Blocks that a multiprocessor has at a time: registers are divided for them.
template <int kDepth>
inline constexpr int kPackedBlocks = kDepth == 64 ? 3 : 2;

// Rows of one head of one sequence, bf16.
struct HeadRows {
  uint16_t* data;
  int64_t stride;
};
__device__ __forceinline__ HeadRows RowsOf(const AttentionHeads& x, int64_t b, int h) {
  return {reinterpret_cast<uint16_t*>(x.data) + b * x.batch_stride + h * x.head_stride,
          x.row_stride};
}

// The first key that the query at position t sees: no smaller than that of the query before.
__device__ __forceinline__ int FirstKey(const AttentionSizes& sizes, int64_t b, int t) {
  const int window = sizes.window == 0 || t < sizes.window ? 0 : t - sizes.window + 1;
  if (sizes.documents == nullptr) return window;
  return max(window, sizes.documents[b * sizes.length + t]);
}

// Begins to copy rows [row, row + kRows) to a tile; zeros from row `end` and from D on.
template <int kDepth, int kRows>
__device__ __forceinline__ void CopyRows(uint32_t tile, const HeadRows& rows, int row, int end,
                                         int depth) {
  constexpr int kPieces = kDepth / kPack, kAtOnce = kPackedThreads / kPieces;
  static_assert(kRows % kAtOnce == 0);
  const int piece = static_cast<int>(threadIdx.x) % kPieces,
            first = static_cast<int>(threadIdx.x) / kPieces;
  const uint16_t* const from = rows.data + (row + first) * rows.stride + piece * kPack;
#pragma unroll
  for (int i = 0; i < kRows; i += kAtOnce) {
    const bool inside = row + first + i < end && piece * kPack < depth;
    CopyAsync16(PieceAt<kDepth>(tile, first + i, piece),
                inside ? from + i * rows.stride : rows.data, inside);
  }
}

// The keys that a warp's queries see: a lane's rows l/4 and l/4 + 8 of each tile, and bounds over
// all 16 kTiles. Rows from `end` on see none.
template <int kTiles>
struct SeenKeys {
  int first[kTiles][2], last[kTiles][2];
  int least_first = INT_MAX, most_first = 0, least_last = INT_MAX, most_last = -1;

  __device__ SeenKeys(const AttentionSizes& sizes, int64_t b, int row, int end) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = row + t * 16 + half * 8 + Lane() / 4;
        first[t][half] = at < end ? FirstKey(sizes, b, at) : INT_MAX;
        last[t][half] = at < end ? at : -1;
        least_first = min(least_first, first[t][half]);
        most_first = max(most_first, first[t][half]);
        least_last = min(least_last, last[t][half]);
        most_last = max(most_last, last[t][half]);
      }
    least_first = __reduce_min_sync(0xffffffffu, least_first);
    most_first = __reduce_max_sync(0xffffffffu, most_first);
    least_last = __reduce_min_sync(0xffffffffu, least_last);
    most_last = __reduce_max_sync(0xffffffffu, most_last);
  }

  // Of keys [key, key + count): whether any query sees one, and whether all see all.
  __device__ bool Any(int key, int count) const {
    return key <= most_last && key + count > least_first;
  }
  __device__ bool All(int key, int count) const {
    return key + count - 1 <= least_last && key >= most_first;
  }
  __device__ bool Sees(int t, int half, int key) const {
    return key >= first[t][half] && key <= last[t][half];
  }
};

// Of element i of eight columns n of a lane's scores.
__device__ __forceinline__ int ColumnOf(int n, int i) { return n * 8 + Lane() % 4 * 2 + i % 2; }

// Rows [row, end) of the warp's sums times their factors.
template <int kDepth, int kTiles>
__device__ __forceinline__ void StoreSums(const HeadRows& rows, int row, int end, int depth,
                                          const Sums<kDepth, kTiles>& sums,
                                          const float (&factor)[kTiles][2]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = row + t * 16 + half * 8 + Lane() / 4;
      if (at >= end) continue;
      uint16_t* const to = rows.data + at * rows.stride + Lane() % 4 * 2;
#pragma unroll
      for (int d = 0; d < kDepth / 8; ++d)
        if (d * 8 < depth)
          *reinterpret_cast<uint32_t*>(to + d * 8) = PairOfBF16(
              sums[t][d][2 * half] * factor[t][half], sums[t][d][2 * half + 1] * factor[t][half]);
    }
}

// Which queries of which head a block works on. Blocks of a head follow each other, so that its
// keys and values stay in the cache; so do heads that share them. Of a head, later queries see more
// keys: they come first.
struct PackedQueries {
  int64_t batch;
  int head, kv_head, row;
};
template <int kQueries>
__device__ __forceinline__ PackedQueries PackedQueriesOf(const AttentionSizes& sizes) {
  const int group = sizes.heads / sizes.kv_heads, tiles = (sizes.length + kQueries - 1) / kQueries;
  const int of_group = static_cast<int>(blockIdx.x) % group;
  int rest = static_cast<int>(blockIdx.x) / group;
  const int tile = tiles - 1 - rest % tiles;
  rest /= tiles;
  const int kv_head = rest % sizes.kv_heads;
  return {rest / sizes.kv_heads, kv_head * group + of_group, kv_head, tile * kQueries};
}

// One block per `rows` rows of each of `heads` heads.
template <class Args>
void LaunchPacked(void (*kernel)(Args), size_t shared_bytes, const Args& args, int rows, int heads,
                  const Launch& launch) {
  const int64_t blocks = CeilDiv(args.sizes.length, rows) * args.sizes.batch * heads;
  MR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)));
  LaunchKernel(launch, static_cast<unsigned>(blocks), kPackedThreads, shared_bytes, kernel, args);
}

}  // namespace millrace::cuda
