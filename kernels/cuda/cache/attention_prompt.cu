// CachedAttentionOp with bf16 heads of 64 or 128 where most rows are successive ones of one
// sequence: products of tiles on tensor cores. Keys and values are read from pages as they lie, so
// it does not matter where a prompt is cut.
//
// Queries  Of a key/value head, query i is head i % per_kv of those that share it, of row
//          i / per_kv. A block has neighbouring ones, a warp 16 kTiles of them.
// Runs     Successive rows of a block that are of one sequence: they meet its keys, kKeys at a
//          time, and are stored; then the next run does. Nothing of another sequence, and no place
//          that nobody wrote, gets into a row's sums.
// Order    Of a query's keys ascending, whatever the pages. Weights are rounded to bf16 before they
//          multiply values, and summed before.
#include "kernels/cuda/cache/cache_launch.h"
#include "kernels/cuda/tensor_cores/attention_tiles.cuh"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kNowhere = -1;

template <int kDepth, int kTiles>
struct Buffers {
  static constexpr int kQueries = kWarps * kTiles * 16;
  struct Stage {
    uint16_t keys[kKeys * kDepth], values[kKeys * kDepth];
  };
  uint16_t queries[kQueries * kDepth];
  Stage stages[2];
  int places[2][kKeys];  // rows of the cache that a stage is filled from
};

// Rows [row, end_row), and the keys [key, end_key) that any of them sees; nobody's see none.
struct Run {
  int row, end_row, slot, key = 0, end_key = 0;
};

__device__ __forceinline__ int FirstSeen(const CachedAttentionArgs& a, int t) {
  return a.window > 0 && t >= a.window ? t - static_cast<int>(a.window) + 1 : 0;
}

// From `row` on, in front of `end`. The same in all lanes.
__device__ __forceinline__ Run RunFrom(const CachedAttentionArgs& a, int row, int end) {
  Run run{.row = row, .end_row = row + 1, .slot = a.places.slots[row]};
  for (;; run.end_row += kWarp) {
    const int other = run.end_row + Lane();
    const unsigned ends =
        __ballot_sync(0xffffffffu, other >= end || a.places.slots[other] != run.slot);
    if (ends == 0) continue;
    run.end_row += __ffs(static_cast<int>(ends)) - 1;
    break;
  }
  if (run.slot < 0) return run;
  run.key = FirstSeen(a, a.places.at[row]);
  run.end_key = a.places.at[run.end_row - 1] + 1;
  return run;
}

// The row of the cache that has a key.
__device__ __forceinline__ int PlaceOf(const CachedAttentionArgs& a, const Run& run, int key) {
  if (key >= run.end_key) return kNowhere;
  const int32_t* const pages = a.places.pages + run.slot * a.places.pages_of_sequence;
  const uint32_t page = a.page_tokens.Quotient(static_cast<uint32_t>(key));
  return pages[page] * static_cast<int>(a.page_tokens.divisor) +
         (key - static_cast<int>(page * a.page_tokens.divisor));
}

// Query i of a block, from the key/value head's query `first` on.
struct QueryAt {
  int row, head;
};
__device__ __forceinline__ QueryAt QueryOf(const CachedAttentionArgs& a, int kv, int query) {
  const int row = static_cast<int>(a.per_kv.Quotient(static_cast<uint32_t>(query))),
            per_kv = static_cast<int>(a.per_kv.divisor);
  return {row, kv * per_kv + query - row * per_kv};
}

// Begins to copy; queries from `end` on become zero.
template <int kDepth, int kQueries>
__device__ __forceinline__ void CopyQueries(const CachedAttentionArgs& a, int kv, int first,
                                            int end, uint32_t tile) {
  constexpr int kPieces = kDepth / kPack;
  const uint16_t* const q = reinterpret_cast<const uint16_t*>(a.q.data);
  for (int e = static_cast<int>(threadIdx.x); e < kQueries * kPieces; e += kThreads) {
    const int i = e / kPieces, piece = e % kPieces;
    const bool inside = first + i < end;
    const QueryAt at = QueryOf(a, kv, inside ? first + i : first);
    CopyAsync16(PieceAt<kDepth>(tile, i, piece),
                q + at.row * a.q.row_stride + at.head * a.q.head_stride + piece * kPack, inside);
  }
}

// Begins to copy the keys and values of `places`, zeros where that is nowhere.
template <int kDepth>
__device__ __forceinline__ void CopyKeys(const CachedAttentionArgs& a, int kv, const int* places,
                                         uint32_t keys, uint32_t values) {
  constexpr int kPieces = kDepth / kPack, kRows = kThreads / kPieces;
  const int piece = static_cast<int>(threadIdx.x) % kPieces,
            row = static_cast<int>(threadIdx.x) / kPieces;
  const uint16_t* const cache =
      reinterpret_cast<const uint16_t*>(a.places.cache) + kv * kDepth + piece * kPack;
  const int64_t to_values = int64_t{a.kv_heads} * kDepth;
#pragma unroll
  for (int i = 0; i < kKeys / kRows; ++i) {
    const int place = places[row + i * kRows];
    const bool inside = place != kNowhere;
    const uint16_t* const from = cache + (inside ? place : 0) * a.places.width;
    const uint32_t at = PieceAt<kDepth>(0, row + i * kRows, piece);
    CopyAsync16(keys + at, from, inside);
    CopyAsync16(values + at, from + to_values, inside);
  }
}

// The last key that each of a lane's queries sees.
template <int kTiles>
using LastSeen = int[kTiles][2];

// Scores of keys from `key` on that a query does not see become -inf.
template <int kTiles>
__device__ __forceinline__ void Mask(const CachedAttentionArgs& a, Scores<kTiles>& scores,
                                     const LastSeen<kTiles>& seen, int key) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int last = seen[t][half], first = FirstSeen(a, last);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int u = key + n * 8 + Lane() % 4 * 2 + i;
          if (u < first || u > last) scores[t][n][2 * half + i] = -INFINITY;
        }
    }
}

// A warp's queries while they meet the keys of a run.
template <int kDepth, int kTiles>
class WarpOfRun {
 public:
  // Of the block's queries [first, end) of a key/value head.
  __device__ WarpOfRun(const CachedAttentionArgs& a, const Run& run, int kv, int first, int end)
      : a_(a), run_(run), kv_(kv), first_(first + WarpOfBlock() * kTiles * 16), end_(end) {
    softmax_.Clear();
    int most_last = -1, least_last = 1 << 30, most_first = 0;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const QueryAt at = QueryOf(a, kv, Query(t, half));
        const bool seeing = Mine(t, half, at) && run.slot >= 0;
        const int last = seeing ? a.places.at[at.row] : -1, since = FirstSeen(a, last);
        last_[t][half] = last;
        most_last = max(most_last, last), least_last = min(least_last, last);
        most_first = max(most_first, since);
      }
    most_last_ = __reduce_max_sync(0xffffffffu, most_last);
    least_last_ = __reduce_min_sync(0xffffffffu, least_last);
    most_first_ = __reduce_max_sync(0xffffffffu, most_first);
  }

  // Of kKeys keys from `key` on.
  __device__ void Meet(const Queries<kDepth, kTiles>& queries, int key, uint32_t keys,
                       uint32_t values, float scale) {
    if (key > most_last_) return;
    Scores<kTiles> scores = {};
    MultiplyKeys(scores, queries, keys);
    if (key + kKeys - 1 > least_last_ || key < most_first_) Mask<kTiles>(a_, scores, last_, key);
    Weigh<kDepth, kTiles>(scores, softmax_, sums_, scale);
    AddValues<kDepth>(sums_, scores, values);
  }

  // Rows of the run; nobody's are 0.
  __device__ void Store() {
    uint16_t* const out = reinterpret_cast<uint16_t*>(a_.out.data) + Lane() % 4 * 2;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float total = softmax_.Total(t, half);
        const float share = total == 0 ? 0 : 1 / total;
        const QueryAt at = QueryOf(a_, kv_, Query(t, half));
        if (!Mine(t, half, at)) continue;
        uint16_t* const to = out + at.row * a_.out.row_stride + at.head * a_.out.head_stride;
#pragma unroll
        for (int d = 0; d < kDepth / 8; ++d)
          *reinterpret_cast<uint32_t*>(to + d * 8) =
              PairOfBF16(sums_[t][d][2 * half] * share, sums_[t][d][2 * half + 1] * share);
      }
  }

 private:
  __device__ int Query(int t, int half) const { return first_ + t * 16 + half * 8 + Lane() / 4; }
  __device__ bool Mine(int t, int half, const QueryAt& at) const {
    return Query(t, half) < end_ && at.row >= run_.row && at.row < run_.end_row;
  }

  const CachedAttentionArgs& a_;
  const Run& run_;
  int kv_, first_, end_;
  int most_last_, least_last_, most_first_;  // of the warp's queries
  LastSeen<kTiles> last_;
  OnlineSoftmax<kTiles> softmax_;
  Sums<kDepth, kTiles> sums_ = {};
};

template <int kDepth, int kTiles>
__global__ void __launch_bounds__(kThreads, kDepth* kTiles == 64 ? 3 : 2)
    AttendPromptKernel(const __grid_constant__ CachedAttentionArgs a) {
  BeginKernel();
  using Shared = Buffers<kDepth, kTiles>;
  extern __shared__ __align__(1024) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  // Later rows see more keys: their blocks come first.
  const int kv = static_cast<int>(blockIdx.x) % a.kv_heads,
            block = static_cast<int>(gridDim.x - 1 - blockIdx.x) / a.kv_heads,
            first = block * Shared::kQueries,
            end = min(first + Shared::kQueries, a.rows * static_cast<int>(a.per_kv.divisor)),
            end_row = QueryOf(a, kv, end - 1).row + 1;
  const float scale = a.scale * kLog2E;
  CopyQueries<kDepth, Shared::kQueries>(a, kv, first, end, SharedAddress(shared.queries));
  CommitCopies();
  Queries<kDepth, kTiles> queries(SharedAddress(shared.queries));
  bool held = false;
  for (int row = QueryOf(a, kv, first).row; row < end_row;) {
    const Run run = RunFrom(a, row, end_row);
    WarpOfRun<kDepth, kTiles> warp(a, run, kv, first, end);
    const int thread = static_cast<int>(threadIdx.x);
    const auto copy = [&](int stage) {
      CopyKeys<kDepth>(a, kv, shared.places[stage], SharedAddress(shared.stages[stage].keys),
                       SharedAddress(shared.stages[stage].values));
      CommitCopies();
    };
    __syncthreads();  // the run before is through with the buffers
    for (int i = thread; i < 2 * kKeys; i += kThreads)
      shared.places[i / kKeys][i % kKeys] = PlaceOf(a, run, run.key + i);
    __syncthreads();
    if (run.key < run.end_key) copy(0);
    int stage = 0;
    for (int key = run.key; key < run.end_key; key += kKeys, stage ^= 1) {
      WaitCopies<0>();
      __syncthreads();
      if (!held) queries.Hold();
      held = true;
      // The keys behind come in while these are met; where those behind them lie, too.
      if (key + kKeys < run.end_key) copy(stage ^ 1);
      const int place = thread < kKeys ? PlaceOf(a, run, key + 2 * kKeys + thread) : 0;
      warp.Meet(queries, key, SharedAddress(shared.stages[stage].keys),
                SharedAddress(shared.stages[stage].values), scale);
      if (thread < kKeys) shared.places[stage][thread] = place;
    }
    warp.Store();
    row = run.end_row;
  }
  WaitCopies<0>();
}

template <int kDepth, int kTiles>
void LaunchTiles(const CachedAttentionArgs& args, const Launch& launch) {
  using Shared = Buffers<kDepth, kTiles>;
  const int64_t queries = int64_t{args.rows} * args.per_kv.divisor;
  MR_CUDA(cudaFuncSetAttribute(AttendPromptKernel<kDepth, kTiles>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
  LaunchKernel(launch, static_cast<unsigned>(CeilDiv(queries, Shared::kQueries) * args.kv_heads),
               kThreads, sizeof(Shared), AttendPromptKernel<kDepth, kTiles>, args);
}

template <int kDepth>
void LaunchDepth(const CachedAttentionArgs& args, const Launch& launch) {
  const int64_t queries = int64_t{args.rows} * args.heads;
  // Large tiles read fewer keys per product; small ones keep more multiprocessors busy.
  if (queries >= int64_t{2} * launch.sms * Buffers<kDepth, 2>::kQueries)
    LaunchTiles<kDepth, 2>(args, launch);
  else
    LaunchTiles<kDepth, 1>(args, launch);
}

}  // namespace

bool AttendsTiles(const CachedAttentionArgs& args) {
  return AttendsWide(args) && args.scale > 0 && args.out.row_stride % 2 == 0 &&
         args.out.head_stride % 2 == 0 && reinterpret_cast<uintptr_t>(args.out.data) % 4 == 0;
}

void LaunchAttendPrompt(const CachedAttentionArgs& args, const Launch& launch) {
  if (args.depth == 64)
    LaunchDepth<64>(args, launch);
  else
    LaunchDepth<128>(args, launch);
}

}  // namespace millrace::cuda
