// CachedAttentionOp `in_order` with bf16 heads of 64 or 128, each row by itself: what a decode step
// does where rows shall have the bits of the training forward (attention/attention_packed.cu), and
// where SharesTiles finds that it is faster.
//
// Order    That kernel takes a query's keys in tiles of 64 from position 0 on, one after the other.
//          Here as many tiles as a block has warps are met side by side: their scores wait for
//          nothing. What is in order is cheap: the largest score so far, tile by tile, and the sums
//          of values, of which each warp has some columns. All products, weights and sums are those
//          of attention_tiles.cuh, in its order.
// Few rows A row's tiles and columns are dealt out to a cluster's blocks, which tell each other
//          what scores and weights came to: each reads a part of the keys, and of the values.
// Rows     A block has a row and up to 16 query heads that share a key/value head: a tile of
//          queries. It caches the row's key and value on its way; those of rows of this op, which
//          other blocks cache meanwhile, are read from x.
#include <cooperative_groups.h>

#include "kernels/cuda/cache/cache_launch.h"
#include "kernels/cuda/tensor_cores/attention_tiles.cuh"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kHeads = 16;             // of a tile of queries
constexpr int kTurn = kWarps * kKeys;  // keys that are met side by side
constexpr int kSteps = kKeys / 16;

template <int kDepth>
struct Buffers {
  uint16_t queries[kHeads * kDepth];
  uint16_t keys[kWarps][kKeys * kDepth], values[kWarps][kKeys * kDepth];
  uint4 weights[kWarps][kSteps][kWarp];  // of a tile, as fragments of lanes
  float most[kWarps][kHeads];            // of a tile's scores
  float total[kWarps][2][kWarp];         // of a tile's weights, of a lane's keys
};

// Where a row's keys and values lie: those of a head.
template <int kDepth>
class KeysOfRow {
 public:
  __device__ KeysOfRow(const CachedAttentionArgs& a, int r, int slot, int t, int kv)
      : a_(a), pages_(a.places.pages + slot * a.places.pages_of_sequence), own_(t), t_(t) {
    // Positions from own_ on are rows of this op.
    for (int before = r - 1; before >= 0 && a.places.slots[before] == slot; --before) --own_;
    cache_ = reinterpret_cast<uint16_t*>(a.places.cache) + kv * kDepth;
    x_ = reinterpret_cast<const uint16_t*>(a.x) + (r - t) * a.x_stride + kv * kDepth;
  }

  __device__ uint16_t* Cached(int u) const {
    const uint32_t page = a_.page_tokens.Quotient(static_cast<uint32_t>(u));
    const int64_t row = int64_t{pages_[page]} * a_.places.page_tokens +
                        (static_cast<uint32_t>(u) - page * a_.page_tokens.divisor);
    return cache_ + row * a_.places.width;
  }
  __device__ const uint16_t* At(int u) const { return u < own_ ? Cached(u) : x_ + u * a_.x_stride; }
  __device__ int64_t to_values() const { return int64_t{a_.kv_heads} * kDepth; }

  // Where the tile of keys from `key` on lies: of its keys lane and lane + 32. Looked up by itself,
  // so that copies do not wait for pages one after the other.
  struct Tile {
    const uint16_t* at[2];
  };
  __device__ Tile TileAt(int key) const {
    Tile tile;
#pragma unroll
    for (int i = 0; i < 2; ++i) tile.at[i] = At(min(key + Lane() + i * kWarp, t_));
    return tile;
  }
  // Begins to copy the keys of a tile from `key` on, or its values, to_values() behind; zeros
  // behind the row's own.
  __device__ void Copy(uint32_t to, const Tile& tile, int key, int64_t behind) const {
    constexpr int kAtOnce = kWarp / kPieces;
#pragma unroll
    for (int i = 0; i < kKeys; i += kAtOnce) {
      const int row = i + Lane() / kPieces;
      const auto at = reinterpret_cast<uint64_t>(tile.at[i / kWarp]);
      const auto* const from =
          reinterpret_cast<const uint16_t*>(__shfl_sync(0xffffffffu, at, row % kWarp)) +
          Piece() * kPack + behind;
      CopyAsync16(PieceAt<kDepth>(to, row, Piece()), from, key + row <= t_);
    }
  }
  // kWidth columns from `column` on of each of a tile's keys, or values, into what to(row, piece)
  // says, but not the key `left_out`; zeros behind the row's own. In few instructions: each is
  // fetched once.
  template <int kWidth, class To>
  __device__ void CopyColumns(int key, int64_t column, int left_out, const To& to) const {
    constexpr int kPiecesEach = kWidth / kPack, kAtOnce = kWarp / kPiecesEach;
    const Tile tile = TileAt(key);
    const int piece = Lane() % kPiecesEach;
#pragma unroll 4
    for (int i = 0; i < kKeys; i += kAtOnce) {
      const int row = i + Lane() / kPiecesEach;
      const auto at = reinterpret_cast<uint64_t>(i < kWarp ? tile.at[0] : tile.at[1]);
      const auto* const from =
          reinterpret_cast<const uint16_t*>(__shfl_sync(0xffffffffu, at, row % kWarp)) + column +
          piece * kPack;
      if (key + row != left_out) CopyAsync16(to(row, piece), from, key + row <= t_);
    }
  }
  // The row's own key and value into the cache, by the block's first threads.
  __device__ void CacheOwn() const {
    if (threadIdx.x >= kPieces) return;
    uint16_t* const to = Cached(t_) + threadIdx.x * kPack;
    const uint16_t* const from = At(t_) + threadIdx.x * kPack;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    *reinterpret_cast<uint4*>(to + to_values()) =
        *reinterpret_cast<const uint4*>(from + to_values());
  }

 private:
  static constexpr int kPieces = kDepth / kPack;
  static __device__ int Piece() { return Lane() % kPieces; }

  const CachedAttentionArgs& a_;
  const int32_t* pages_;
  uint16_t* cache_;
  const uint16_t* x_;
  int own_, t_;
};

// MultiplyKeys of attention_tiles.cuh, whose fragments of a step come ahead of its products: few
// warps are here to wait beside each other.
template <int kDepth>
__device__ __forceinline__ void MultiplyKeysAhead(Scores<1>& scores,
                                                  const Queries<kDepth, 1>& queries,
                                                  uint32_t keys) {
  const uint32_t at = PieceAt<kDepth>(keys, Lane() % 8 + Lane() / 16 * 8, Lane() / 8 % 2);
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    uint32_t x[1][4], b[kKeys / 16][4];
    queries.Get(x, k);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n)
      LoadMatrices(
          b[n], (at ^ static_cast<uint32_t>(k * 32)) + static_cast<uint32_t>(n * 16 * kDepth * 2));
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      Mma(scores[0][2 * n], x[0], b[n][0], b[n][1]);
      Mma(scores[0][2 * n + 1], x[0], b[n][2], b[n][3]);
    }
  }
}

// Scores of a tile of keys from `key` on, of which no query sees those behind `last`. `most`
// becomes the largest of it and of the scores, of each of a thread's two queries.
template <int kDepth>
__device__ __forceinline__ void ScoreTile(Scores<1>& scores, float (&most)[2],
                                          const Queries<kDepth, 1>& queries, uint32_t keys, int key,
                                          int last) {
  MultiplyKeysAhead<kDepth>(scores, queries, keys);
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& score = scores[0][n][i];
      if (key + n * 8 + Lane() % 4 * 2 + i % 2 > last) score = -INFINITY;
      most[i / 2] = fmaxf(most[i / 2], score);
    }
#pragma unroll
  for (float& m : most) {
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
  }
}

// Scores become weights, as in Weigh; their sums by a thread are added to `total`.
__device__ __forceinline__ void WeighTile(Scores<1>& scores, float (&total)[2], float scale,
                                          const float (&base)[2]) {
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& score = scores[0][n][i];
      score = Exp2(__fmaf_rn(score, scale, -base[i / 2]));
      total[i / 2] = __fadd_rn(total[i / 2], score);
    }
}

// Begins to copy a row's queries of heads from `head` on, by all threads; zeros behind the `heads`.
template <int kDepth>
__device__ __forceinline__ void CopyQueries(uint32_t to, const CachedAttentionArgs& a, int r,
                                            int head, int heads) {
  constexpr int kPieces = kDepth / kPack;
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * kPieces; i += kThreads) {
    const int h = i / kPieces, piece = i % kPieces;
    const uint16_t* const q = reinterpret_cast<const uint16_t*>(a.q.data) + r * a.q.row_stride +
                              (head + (h < heads ? h : 0)) * a.q.head_stride;
    CopyAsync16(PieceAt<kDepth>(to, h, piece), q + piece * kPack, h < heads);
  }
}

template <int kDepth>
__global__ void __launch_bounds__(kThreads)
    AttendInOrderKernel(const __grid_constant__ CachedAttentionArgs a) {
  // A step of one row: what earlier steps have cached is on its way before the kernel ahead has
  // ended (cache.h).
  const bool early = a.rows == 1;
  if (!early) BeginKernel();
  extern __shared__ __align__(1024) std::byte memory[];
  Buffers<kDepth>& s = *reinterpret_cast<Buffers<kDepth>*>(memory);
  const int r = static_cast<int>(blockIdx.x), per_kv = static_cast<int>(a.per_kv.divisor),
            lots = (per_kv + kHeads - 1) / kHeads, kv = static_cast<int>(blockIdx.y) / lots,
            first = static_cast<int>(blockIdx.y) % lots * kHeads,
            heads = min(kHeads, per_kv - first), head = kv * per_kv + first, warp = WarpOfBlock();
  const int slot = a.places.slots[r], t = a.places.at[r];
  uint16_t* const out =
      reinterpret_cast<uint16_t*>(a.out.data) + r * a.out.row_stride + head * a.out.head_stride;
  if (slot < 0) {
    if (early) BeginKernel();
    for (int i = static_cast<int>(threadIdx.x); i < heads * kDepth; i += kThreads)
      out[i / kDepth * a.out.head_stride + i % kDepth] = 0;
    return;
  }
  const KeysOfRow<kDepth> of_row(a, r, slot, t, kv);
  const uint32_t keys = SharedAddress(s.keys[warp]), values = SharedAddress(s.values[warp]);
  auto tile = of_row.TileAt(warp * kKeys);
  const auto copy_keys = [&](int key) { of_row.Copy(keys, tile, key, 0); };
  const auto copy_values = [&](int key) { of_row.Copy(values, tile, key, of_row.to_values()); };
  const bool all_cached = early && t >= kTurn;  // of the first turn
  if (all_cached) {
    copy_keys(warp * kKeys);
    copy_values(warp * kKeys);
  }
  if (early) {
    BeginKernel();
    LetNextBegin();
  }
  CopyQueries<kDepth>(SharedAddress(s.queries), a, r, head, heads);
  if (!all_cached) copy_keys(warp * kKeys);
  CommitCopies();
  if (!all_cached) copy_values(warp * kKeys);
  CommitCopies();
  if (first == 0) of_row.CacheOwn();

  const float scale = a.scale * kLog2E;
  const int lane = Lane(), row = lane / 4;
  Queries<kDepth, 1> queries(SharedAddress(s.queries), 0);
  OnlineSoftmax<1> softmax;
  softmax.Clear();
  constexpr int kColumns = kDepth / kWarps;  // of values, of a warp
  float sums[kColumns / 8][4] = {};
  for (int turn = 0; turn <= t; turn += kTurn) {
    const int key = turn + warp * kKeys, tiles = min(kWarps, (t - turn) / kKeys + 1);
    tile = of_row.TileAt(key + kTurn);  // of the next turn
    WaitCopies<1>();                    // keys; the values behind them may be on their way
    if (turn == 0) {
      __syncthreads();
      queries.Hold();
    }
    __syncwarp();
    Scores<1> scores = {};
    float most[2] = {-INFINITY, -INFINITY};
    if (warp < tiles) {
      ScoreTile<kDepth>(scores, most, queries, keys, key, t);
    }
    if (lane % 4 == 0) s.most[warp][row] = most[0], s.most[warp][row + 8] = most[1];
    __syncwarp();
    if (key + kTurn <= t) copy_keys(key + kTurn);
    CommitCopies();
    __syncthreads();

    // Tile by tile, as Weigh does.
    float keep[kWarps][2], base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float before = softmax.most[0][half], now = fmaxf(before, s.most[w][row + 8 * half]);
        keep[w][half] = KeepOf(before, now, scale);
        if (w == warp) base[half] = BaseOf(now, scale);
        softmax.most[0][half] = now;
      }
    if (warp < tiles) {
      float total[2] = {};
      WeighTile(scores, total, scale, base);
      s.total[warp][0][lane] = total[0], s.total[warp][1][lane] = total[1];
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
        uint32_t x[4];
        FragmentOf(x, scores[0][2 * n], scores[0][2 * n + 1]);
        s.weights[warp][n][lane] = make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
    WaitCopies<1>();  // values; the next keys may be on their way
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w >= tiles) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& total = softmax.total[0][half];
        total = __fmaf_rn(total, keep[w][half], s.total[w][half][lane]);
      }
#pragma unroll
      for (int d = 0; d < kColumns / 8; ++d)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[d][i] = __fmul_rn(sums[d][i], keep[w][i / 2]);
      const uint32_t at = PieceAt<kDepth>(SharedAddress(s.values[w]), lane % 16, lane / 16);
      uint32_t b[kSteps][kColumns / 16][4];
#pragma unroll
      for (int n = 0; n < kSteps; ++n)
#pragma unroll
        for (int d = 0; d < kColumns / 16; ++d)
          LoadTransposed(b[n][d], (at ^ static_cast<uint32_t>((warp * (kColumns / 16) + d) * 32)) +
                                      static_cast<uint32_t>(n * 16 * kDepth * 2));
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
        const uint4 words = s.weights[w][n][lane];
        const uint32_t x[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int d = 0; d < kColumns / 16; ++d) {
          Mma(sums[2 * d], x, b[n][d][0], b[n][d][1]);
          Mma(sums[2 * d + 1], x, b[n][d][2], b[n][d][3]);
        }
      }
    }
    __syncthreads();
    if (key + kTurn <= t) copy_values(key + kTurn);
    CommitCopies();
  }
  WaitCopies<0>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float factor = 1 / softmax.Total(0, half);
    const int h = row + 8 * half;
    if (h >= heads) continue;
    uint16_t* const to = out + h * a.out.head_stride + warp * kColumns + lane % 4 * 2;
#pragma unroll
    for (int d = 0; d < kColumns / 8; ++d)
      *reinterpret_cast<uint32_t*>(to + d * 8) =
          PairOfBF16(sums[d][2 * half] * factor, sums[d][2 * half + 1] * factor);
  }
}

constexpr int kBlocks = 4;  // of a cluster
constexpr int kTilesAcross = kBlocks * kWarps, kTurnAcross = kTilesAcross * kKeys;

template <int kDepth>
struct BuffersAcross {
  static constexpr int kColumns = kDepth / kBlocks, kPieces = kColumns / kPack;  // of values
  uint16_t queries[kHeads * kDepth];
  uint16_t keys[kWarps][kKeys * kDepth], values[kTurnAcross * kColumns];
  // As in Buffers, of all tiles of the cluster; blocks write them to each other. The largest scores
  // are read until a turn ends, when others may be in the next.
  uint4 weights[kTilesAcross][kSteps][kWarp];
  float most[2][kTilesAcross][kHeads];
  float total[kTilesAcross][2][kWarp];

  // 16 bytes of a key's value, such that eight keys' lie in different banks.
  static __device__ __forceinline__ uint32_t ValueAt(uint32_t values, int key, int piece) {
    return values + static_cast<uint32_t>(key * kColumns * 2 +
                                          ((piece ^ (key / (8 / kPieces) % kPieces)) * 16));
  }
};

// What a lane of a warp needs to add a tile of a turn: its weights, the values of the warp's
// columns, and of its two queries the largest score and the weights' sum.
struct TileToAdd {
  uint4 weights[kSteps];
  uint32_t values[kSteps / 2][4];
  float most[2], total[2];

  template <class Shared>
  __device__ __forceinline__ void Load(const Shared& s, int turn, int tile) {
    const int lane = Lane();
#pragma unroll
    for (int m = 0; m < kSteps / 2; ++m)
      LoadTransposed(values[m], Shared::ValueAt(SharedAddress(s.values),
                                                tile * kKeys + m * 32 + lane, WarpOfBlock()));
#pragma unroll
    for (int n = 0; n < kSteps; ++n) weights[n] = s.weights[tile][n][lane];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = s.most[turn][tile][lane / 4 + 8 * half];
      total[half] = s.total[tile][half][lane];
    }
  }
};

// Warp w of block c meets tile 4 w + c of a turn, and copies the block's columns of the values of
// tiles 4 w to 4 w + 3. Most of its time it waits for instructions: loops are not unrolled where
// that hides nothing.
template <int kDepth>
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kThreads)
    AttendAcrossKernel(const __grid_constant__ CachedAttentionArgs a) {
  // Other blocks' memory is there once all blocks are.
  asm volatile("barrier.cluster.arrive.aligned;" : : : "memory");
  using Shared = BuffersAcross<kDepth>;
  const bool early = a.rows == 1;  // as in AttendInOrderKernel
  if (!early) BeginKernel();
  extern __shared__ __align__(1024) std::byte memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int block = static_cast<int>(blockIdx.x) % kBlocks,
            r = static_cast<int>(blockIdx.x) / kBlocks, per_kv = static_cast<int>(a.per_kv.divisor),
            lots = (per_kv + kHeads - 1) / kHeads, kv = static_cast<int>(blockIdx.y) / lots,
            first = static_cast<int>(blockIdx.y) % lots * kHeads,
            heads = min(kHeads, per_kv - first), head = kv * per_kv + first, warp = WarpOfBlock(),
            lane = Lane(), row = lane / 4, own = warp * kBlocks + block;
  const int slot = a.places.slots[r], t = a.places.at[r];
  uint16_t* const out = reinterpret_cast<uint16_t*>(a.out.data) + r * a.out.row_stride +
                        head * a.out.head_stride + block * Shared::kColumns;
  if (slot < 0) {  // of all blocks of the cluster
    if (early) BeginKernel();
    for (int i = static_cast<int>(threadIdx.x); i < heads * Shared::kColumns; i += kThreads)
      out[i / Shared::kColumns * a.out.head_stride + i % Shared::kColumns] = 0;
    return;
  }
  const KeysOfRow<kDepth> of_row(a, r, slot, t, kv);
  const uint32_t keys = SharedAddress(s.keys[warp]), values = SharedAddress(s.values);
  const int64_t column_of_values = of_row.to_values() + block * Shared::kColumns;
  const auto key_at = [&](int key, int piece) { return PieceAt<kDepth>(keys, key, piece); };
  const auto copy_keys = [&](int turn, int left_out) {
    if (const int key = turn + own * kKeys; key <= t)
      of_row.template CopyColumns<kDepth>(key, 0, left_out, key_at);
  };
  const auto copy_values = [&](int turn, int left_out) {
#pragma unroll 1
    for (int tile = warp * kBlocks; tile < (warp + 1) * kBlocks; ++tile) {
      const int key = turn + tile * kKeys;
      if (key > t) break;  // nobody adds what lies there
      of_row.template CopyColumns<Shared::kColumns>(
          key, column_of_values, left_out,
          [&](int i, int piece) { return Shared::ValueAt(values, tile * kKeys + i, piece); });
    }
  };
  // All of the first turn that is cached before the kernel, then what is the row's own.
  if (early) {
    copy_keys(0, t);
    copy_values(0, t);
    BeginKernel();
    LetNextBegin();
  }
  CopyQueries<kDepth>(SharedAddress(s.queries), a, r, head, heads);
  if (!early) {
    copy_keys(0, -1);
  } else if (t / kKeys < kTilesAcross && t / kKeys / kBlocks == warp) {
    const uint16_t* const from = of_row.At(t) + lane * kPack;
    if (t / kKeys == own && lane < kDepth / kPack) CopyAsync16(key_at(t % kKeys, lane), from, true);
    if (lane < Shared::kPieces)
      CopyAsync16(Shared::ValueAt(values, t, lane), from + column_of_values, true);
  }
  CommitCopies();
  if (!early) copy_values(0, -1);
  CommitCopies();
  if (first == 0 && block == 0) of_row.CacheOwn();

  const float scale = a.scale * kLog2E;
  const auto cluster = cooperative_groups::this_cluster();
  Queries<kDepth, 1> queries(SharedAddress(s.queries), 0);
  OnlineSoftmax<1> softmax;
  softmax.Clear();
  float sums[4] = {};
  const bool adds = warp < Shared::kPieces;  // eight columns of values each
  __syncwarp();                              // some lanes wrote to the cache just now
  asm volatile("barrier.cluster.wait.aligned;" : : : "memory");
  for (int turn = 0, of_turn = 0; turn <= t; turn += kTurnAcross, of_turn ^= 1) {
    const int key = turn + own * kKeys, tiles = min(kTilesAcross, (t - turn) / kKeys + 1);
    WaitCopies<1>();
    if (turn == 0) {
      __syncthreads();
      queries.Hold();
    }
    __syncwarp();
    Scores<1> scores = {};
    if (own < tiles) {
      float most[2] = {-INFINITY, -INFINITY};
      ScoreTile<kDepth>(scores, most, queries, keys, key, t);
      // Lane l % 4 of four tells block l % 4.
      float* const to = cluster.map_shared_rank(&s.most[of_turn][own][row], lane % 4);
      to[0] = most[0], to[8] = most[1];
    }
    cluster.sync();

    // Tile by tile, as Weigh does. Of heads that are not there nobody tells or stores anything.
    if (own < tiles) {
      float most[2] = {softmax.most[0][0], softmax.most[0][1]}, base[2], total[2] = {};
#pragma unroll 4
      for (int w = 0; w <= own; ++w) {
        most[0] = fmaxf(most[0], s.most[of_turn][w][row]);
        most[1] = fmaxf(most[1], s.most[of_turn][w][row + 8]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) base[half] = BaseOf(most[half], scale);
      WeighTile(scores, total, scale, base);
      uint4 words[kSteps];
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
        uint32_t x[4];
        FragmentOf(x, scores[0][2 * n], scores[0][2 * n + 1]);
        words[n] = make_uint4(x[0], x[1], x[2], x[3]);
      }
      if (row < heads)
#pragma unroll 1
        for (int b = 0; b < kBlocks; ++b) {
          float* const to = cluster.map_shared_rank(&s.total[own][0][lane], b);
          to[0] = total[0], to[kWarp] = total[1];
          uint4* const at = cluster.map_shared_rank(&s.weights[own][0][lane], b);
#pragma unroll
          for (int n = 0; n < kSteps; ++n) at[n * kWarp] = words[n];
        }
    }
    const bool more = turn + kTurnAcross <= t;
    if (more) {
      __syncwarp();
      copy_keys(turn + kTurnAcross, -1);
    }
    CommitCopies();
    WaitCopies<1>();  // values; the next keys may be on their way
    cluster.sync();
    if (adds) {
      TileToAdd next;
      next.Load(s, of_turn, 0);
#pragma unroll 1
      for (int w = 0; w < tiles; ++w) {
        const TileToAdd tile = next;
        next.Load(s, of_turn, min(w + 1, kTilesAcross - 1));  // ahead of what waits for products
        float keep[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float &most = softmax.most[0][half], &total = softmax.total[0][half];
          const float now = fmaxf(most, tile.most[half]);
          keep[half] = KeepOf(most, now, scale);
          total = __fmaf_rn(total, keep[half], tile.total[half]);
          most = now;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] = __fmul_rn(sums[i], keep[i / 2]);
#pragma unroll
        for (int n = 0; n < kSteps; ++n) {
          const uint32_t x[4] = {tile.weights[n].x, tile.weights[n].y, tile.weights[n].z,
                                 tile.weights[n].w};
          Mma(sums, x, tile.values[n / 2][n % 2 * 2], tile.values[n / 2][n % 2 * 2 + 1]);
        }
      }
    }
    __syncthreads();
    if (more) {
      // What its tiles are weighed against in the next turn, where a warp has added none.
      for (int w = 0; !adds && w < tiles; ++w)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          softmax.most[0][half] = fmaxf(softmax.most[0][half], s.most[of_turn][w][row + 8 * half]);
      copy_values(turn + kTurnAcross, -1);
    }
    CommitCopies();
  }
  WaitCopies<0>();
  if (!adds) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float factor = 1 / softmax.Total(0, half);
    const int h = row + 8 * half;
    if (h < heads)
      *reinterpret_cast<uint32_t*>(out + h * a.out.head_stride + warp * 8 + lane % 4 * 2) =
          PairOfBF16(sums[2 * half] * factor, sums[2 * half + 1] * factor);
  }
}

template <int kDepth>
void LaunchDepth(const CachedAttentionArgs& args, const Launch& launch) {
  const int64_t lots = CeilDiv(static_cast<int64_t>(args.per_kv.divisor), kHeads);
  const auto heads = static_cast<unsigned>(args.kv_heads * lots),
             rows = static_cast<unsigned>(args.rows);
  Launch beside = launch;
  beside.one_row = args.rows == 1;
  const auto run = [&](auto kernel, unsigned blocks, size_t bytes) {
    MR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(bytes)));
    LaunchKernel(beside, dim3(blocks, heads), kThreads, bytes, kernel, args);
  };
  // Where rows alone keep the device busy, blocks have nothing to tell each other.
  if (int64_t{rows} * heads * kBlocks <= 2 * launch.sms)
    run(AttendAcrossKernel<kDepth>, rows * kBlocks, sizeof(BuffersAcross<kDepth>));
  else
    run(AttendInOrderKernel<kDepth>, rows, sizeof(Buffers<kDepth>));
}

}  // namespace

bool SharesTiles(const CachedAttentionArgs& args, const Launch& launch) {
  constexpr uint32_t kFewestHeads = 4;
  return AttendsTiles(args) && args.window == 0 && args.per_kv.divisor >= kFewestHeads &&
         int64_t{args.rows} * args.kv_heads >= 2 * int64_t{launch.sms};
}

void LaunchAttendInOrder(const CachedAttentionArgs& args, const Launch& launch) {
  if (args.depth == 64)
    LaunchDepth<64>(args, launch);
  else
    LaunchDepth<128>(args, launch);
}

}  // namespace millrace::cuda
