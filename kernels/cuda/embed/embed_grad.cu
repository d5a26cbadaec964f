#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/embed/embed_grad_launch.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kMaxTile = static_cast<int>(EmbedGradScratch::kMaxSumTile);
constexpr int kFewTile = static_cast<int>(EmbedGradScratch{1, 1, 1}.sum_tile());  // of few rows
constexpr int kMaxThreads = 256;  // a thread is one pack of columns; wider rows take several blocks
constexpr int kUnroll = 8;        // rows that are in flight
constexpr int kFromLeft = 0, kToRight = 1;  // the two partial sums of a tile

__device__ __forceinline__ void AddTo(Floats& sum, const Floats& x) {
#pragma unroll
  for (int i = 0; i < kPack; ++i) sum.v[i] = __fadd_rn(sum.v[i], x.v[i]);
}

// First column of this thread; blockIdx.y counts blocks of columns.
__device__ __forceinline__ int Column() {
  return static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kPack;
}

__device__ __forceinline__ Rows PartialOf(const EmbedGradArgs& a, int64_t tile, int which) {
  Rows rows;
  rows.data = reinterpret_cast<std::byte*>(a.table.partials + (tile * 2 + which) * a.columns);
  rows.wide = a.columns % 4 == 0;  // scratch is aligned
  return rows;
}

// The sorted rows [tile * number, tile * (number + 1)). Runs of one token that lie inside reach
// d_table; a run that crosses a border of the tile leaves its sum in partials. Mix: of the results.
template <Elements E, Elements Mix>
__device__ __forceinline__ void SumTile(const EmbedGradArgs& a, int number) {
  // With the neighbours on either side, -1 where there is none.
  __shared__ int32_t key[kMaxTile + 2];
  __shared__ int32_t row[kMaxTile];
  const int begin = number * a.table.tile, n = min(a.table.tile, a.rows - begin);
  for (int i = static_cast<int>(threadIdx.x); i < n + 2; i += static_cast<int>(blockDim.x)) {
    const int at = begin + i - 1;
    key[i] = at >= 0 && at < a.rows ? a.table.keys[at] : -1;
  }
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x))
    row[i] = a.table.order[begin + i];
  __syncthreads();
  const int c = Column(), left = a.columns - c;
  if (left <= 0) return;

  const Rows& d_table = a.table.d_table;
  Floats sum = {};
  int run = 0;  // first row of the run
  for (int first = 0; first < n; first += kUnroll) {
    Raw<E> raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (first + u < n) raw[u] = LoadRaw<E>(a.d_out, row[first + u] * a.d_out.stride + c, left);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u;
      if (i >= n) break;
      AddTo(sum, ToFloats<E>(a.d_out, raw[u]));
      const int32_t token = key[i + 1];
      if (i + 1 < n && key[i + 2] == token) continue;
      const bool from_left = run == 0 && key[0] == token,
                 to_right = i + 1 == n && key[n + 1] == token;
      if (from_left || to_right)
        Store<Elements::kF32>(PartialOf(a, number, from_left ? kFromLeft : kToRight), c, left, sum);
      else
        StoreOrAdd<Mix>(d_table, token * d_table.stride + c, left, sum, a.table.accumulate);
      sum = {};
      run = i + 1;
    }
  }
}

// The same where rows are few and of whole packs, each tile by kShares blocks: one sums the runs
// that begin in its share of the tile's rows, to their ends. T: of d_table. What a batch of rows
// adds to is loaded together with them: the threads wait for memory once, not for each run.
constexpr int kShares = kFewTile / kUnroll;
static_assert(kFewTile % kUnroll == 0 && kFewTile + 2 <= kWarp);

template <Elements E, Elements T>
__device__ __forceinline__ void SumShare(const EmbedGradArgs& a, int number, int share) {
  __shared__ int32_t key[kFewTile + 2];  // as SumTile's
  __shared__ int32_t row[kFewTile];
  const int begin = number * kFewTile, n = min(kFewTile, a.rows - begin);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const int at = begin + thread - 1;
  int32_t own_key = -1, own_row = 0;
  if (thread < n + 2 && at >= 0 && at < a.rows) own_key = a.table.keys[at];
  if (thread < n) own_row = a.table.order[begin + thread];
  if (thread < n + 2) key[thread] = own_key;
  if (thread < n) row[thread] = own_row;
  __syncthreads();
  // Bit i: a run begins with row i.
  const unsigned begins =
      __ballot_sync(0xffffffffu, lane < n && (lane == 0 || key[lane] != key[lane + 1]));
  const auto next_run = [&](int i) {
    const unsigned later = begins >> i << i;
    return later != 0 ? __ffs(static_cast<int>(later)) - 1 : n;
  };
  const int from = next_run(share * kUnroll), to = next_run((share + 1) * kUnroll);
  const int c = Column();
  if (c >= a.columns) return;

  Rows d_out = a.d_out, d_table = a.table.d_table;
  d_out.wide = d_table.wide = true;
  const int32_t before = key[0], after = key[n + 1];
  Floats sum = {};
  for (int first = from; first < to; first += kUnroll) {
    Raw<E> raw[kUnroll];
    Raw<T> old[kUnroll];
    const auto ends = [&](int i) { return i + 1 == n || (begins >> (i + 1) & 1u) != 0; };
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u;
      if (i >= to) break;
      raw[u] = LoadRaw<E>(d_out, row[i] * d_out.stride + c, kPack);
      const int32_t token = key[i + 1];
      if (a.table.accumulate && ends(i) && token != before && token != after)
        old[u] = LoadRaw<T>(d_table, token * d_table.stride + c, kPack);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u;
      if (i >= to) break;
      AddTo(sum, ToFloats<E>(d_out, raw[u]));
      if (!ends(i)) continue;
      const int32_t token = key[i + 1];
      if (token == before || token == after) {
        Rows partial = PartialOf(a, number, token == before ? kFromLeft : kToRight);
        partial.wide = true;
        Store<Elements::kF32>(partial, c, kPack, sum);
      } else {
        if (a.table.accumulate) AddTo(sum, ToFloats<T>(d_table, old[u]));
        Store<T>(d_table, token * d_table.stride + c, kPack, sum);
      }
      sum = {};
    }
  }
}

// found = the rows of d_out among the kUnroll * blockDim.x from `first` on whose place in their
// document is `position`, in order; gives how many. All threads of the block call it; what it wrote
// is theirs to read until they call it again.
__device__ __forceinline__ int FindRows(const EmbedGradArgs& a, int position, int first,
                                        int32_t (&found)[kUnroll * kMaxThreads]) {
  __shared__ uint32_t
      hits[kUnroll * kMaxThreads / kWarp];  // bit l of hits[w]: row first + w*32 + l
  const PositionsGradArgs& p = a.positions;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            warps = static_cast<int>(blockDim.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncthreads();  // found may still be read
  for (int u = 0; u < kUnroll; ++u) {
    const int word = u * warps + warp, r = first + word * kWarp + lane;
    const auto at = static_cast<uint32_t>(p.first) + static_cast<uint32_t>(r);
    const bool hit =
        r < a.rows &&
        static_cast<int>(at % static_cast<uint32_t>(p.length)) - p.documents[at] == position;
    const uint32_t mask = __ballot_sync(0xffffffffu, hit);
    if (lane == 0) hits[word] = mask;
  }
  __syncthreads();
  int count = 0;
  for (int word = 0; word < kUnroll * warps; ++word) {
    const uint32_t mask = hits[word];
    if (word % warps == warp && (mask >> lane & 1u) != 0)
      found[count + __popc(mask & ((1u << lane) - 1u))] = first + word * kWarp + lane;
    count += __popc(mask);
  }
  __syncthreads();
  return count;
}

// d_positions[p] (=|+=) sum of the rows whose place in their document is p, in order. A block looks
// for them together: a thread that walked all rows alone took most of the time of a step.
template <Elements E, Elements Mix>
__device__ __forceinline__ void SumDocuments(const EmbedGradArgs& a, int position) {
  __shared__ int32_t found[kUnroll * kMaxThreads];
  const Rows& d_positions = a.positions.d_positions;
  const int c = Column(), left = a.columns - c;
  Floats sum = {};
  for (int first = 0; first < a.rows; first += kUnroll * static_cast<int>(blockDim.x)) {
    const int count = FindRows(a, position, first, found);
    for (int i = 0; left > 0 && i < count; i += kUnroll) {
      Raw<E> raw[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (i + u < count) raw[u] = LoadRaw<E>(a.d_out, found[i + u] * a.d_out.stride + c, left);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (i + u < count) AddTo(sum, ToFloats<E>(a.d_out, raw[u]));
    }
  }
  if (left > 0)
    StoreOrAdd<Mix>(d_positions, position * d_positions.stride + c, left, sum,
                    a.positions.accumulate);
}

// d_positions[p] (=|+=) sum over b of d_out[b*T + t - first], t = p - start[b % 2], of the rows
// that there are.
template <Elements E, Elements Mix>
__device__ __forceinline__ void SumPosition(const EmbedGradArgs& a, int64_t position) {
  const PositionsGradArgs& p = a.positions;
  const int c = Column(), left = a.columns - c;
  if (left <= 0) return;
  Floats sum = {};
  // Rows of d_out are those of the tokens from p.first on.
  const auto at = [&](int64_t b) { return position - p.start[b % 2]; };
  const auto row = [&](int64_t b) { return b * p.length + at(b) - p.first; };
  const auto inside = [&](int64_t b) {
    return b < p.batch && at(b) >= 0 && at(b) < p.length && row(b) >= 0 && row(b) < a.rows;
  };
  for (int64_t first = 0; first < p.batch; first += kUnroll) {
    Raw<E> raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (inside(first + u))
        raw[u] = LoadRaw<E>(a.d_out, row(first + u) * a.d_out.stride + c, left);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (inside(first + u)) AddTo(sum, ToFloats<E>(a.d_out, raw[u]));
  }
  StoreOrAdd<Mix>(p.d_positions, position * p.d_positions.stride + c, left, sum, p.accumulate);
}

template <Elements E, Elements Mix>
__device__ __forceinline__ void SumAnyPosition(const EmbedGradArgs& a, int position) {
  if (a.positions.documents != nullptr)
    SumDocuments<E, Mix>(a, position);
  else
    SumPosition<E, Mix>(a, position);
}

// Blocks x: the tiles of sorted rows, then the positions.
template <Elements E, Elements Mix>
__global__ void __launch_bounds__(kMaxThreads) SumsKernel(const EmbedGradArgs a) {
  BeginKernel();
  const int x = static_cast<int>(blockIdx.x);
  if (x < a.table.tiles)
    SumTile<E, Mix>(a, x);
  else
    SumAnyPosition<E, Mix>(a, x - a.table.tiles);
}

// Blocks x: the shares of the tiles, then the positions.
template <Elements E, Elements Mix>
__global__ void __launch_bounds__(kMaxThreads) FewSumsKernel(const EmbedGradArgs a) {
  BeginKernel();
  const int x = static_cast<int>(blockIdx.x), number = x / kShares;
  if (number >= a.table.tiles)
    SumAnyPosition<E, Mix>(a, x - a.table.tiles * kShares);
  else if (AreShort<Mix>(a.table.d_table))
    SumShare<E, kShortOf<Mix>>(a, number, x % kShares);
  else
    SumShare<E, Elements::kF32>(a, number, x % kShares);
}

// Block x: the token whose rows begin in tile x and go on to the right, if
// there is one. Adds its parts.
template <Elements Mix>
__global__ void __launch_bounds__(kMaxThreads) JoinTilesKernel(const EmbedGradArgs a) {
  BeginKernel();
  const TableGradArgs& t = a.table;
  const int begin = static_cast<int>(blockIdx.x) * t.tile, next = begin + t.tile;
  if (next >= a.rows) return;
  const int32_t token = t.keys[next];
  if (t.keys[next - 1] != token || (begin > 0 && t.keys[begin - 1] == token)) return;
  const int c = Column(), left = a.columns - c;
  if (left <= 0) return;
  Floats sum = Load<Elements::kF32>(PartialOf(a, blockIdx.x, kToRight), c, left);
  // On through the tiles that begin with the token.
  bool more = true;
  for (int first = static_cast<int>(blockIdx.x) + 1; more && first < t.tiles; first += kUnroll) {
    Raw<Elements::kF32> raw[kUnroll];
    int32_t key[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      key[u] = -1;
      if (first + u >= t.tiles) continue;
      key[u] = t.keys[(first + u) * t.tile];
      // Or leftovers.
      raw[u] = LoadRaw<Elements::kF32>(PartialOf(a, first + u, kFromLeft), c, left);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      more = more && key[u] == token;
      if (more) AddTo(sum, ToFloats<Elements::kF32>(Rows{}, raw[u]));
    }
  }
  StoreOrAdd<Mix>(t.d_table, token * t.d_table.stride + c, left, sum, t.accumulate);
}

// Rows of the table that no token names become zero. A warp is a row, which it looks up among the
// sorted keys: [low, high) holds the first that is not below v, cut into 32 at a time.
template <Elements Mix>
__global__ void __launch_bounds__(kMaxThreads) ZeroUnnamedKernel(const EmbedGradArgs a) {
  BeginKernel();
  const TableGradArgs& t = a.table;
  const int64_t v = (int64_t{blockIdx.x} * kMaxThreads + threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (v >= t.vocab) return;
  int low = 0, high = a.rows;
  while (low < high) {
    const int step = (high - low + kWarp - 1) / kWarp;
    const int64_t at = low + int64_t{lane} * step;
    const int below = __popc(__ballot_sync(0xffffffffu, at < high && t.keys[at] < v));
    if (below == 0) break;
    high = static_cast<int>(min(int64_t{high}, low + int64_t{below} * step));
    low += (below - 1) * step + 1;
  }
  if (low < a.rows && t.keys[low] == v) return;
  for (int c = lane * kPack; c < a.columns; c += kWarp * kPack)
    Store<Mix>(t.d_table, v * t.d_table.stride + c, a.columns - c, Floats{});
}

// Threads over the packs of a row, blocks of them in y.
struct Columns {
  unsigned threads, blocks;
  explicit Columns(int columns) {
    const int64_t packs = Packs(columns);
    threads = static_cast<unsigned>(std::min<int64_t>(kMaxThreads, CeilDiv(packs, kWarp) * kWarp));
    blocks = static_cast<unsigned>(CeilDiv(packs, threads));
  }
};

template <Elements Mix>
void LaunchAll(const EmbedGradArgs& args, const Launch& launch) {
  const Columns columns(args.columns);
  const bool table = args.table.d_table.data != nullptr;
  const int64_t positions =
      args.positions.d_positions.data != nullptr ? args.positions.positions : 0;
  const bool few = args.table.tile == kFewTile && args.columns % kPack == 0 && args.d_out.wide &&
                   args.table.d_table.wide;
  const int64_t table_blocks = int64_t{args.table.tiles} * (few ? kShares : 1);
  const dim3 grid(static_cast<unsigned>(table_blocks + positions), columns.blocks);
  if (grid.x > 0) {
    const auto run = [&]<Elements E>() {
      LaunchKernel(launch, grid, columns.threads, 0,
                   few ? FewSumsKernel<E, Mix> : SumsKernel<E, Mix>, args);
    };
    args.d_out.bf16 || args.d_out.f16 ? run.template operator()<kShortOf<Mix>>()
                                      : run.template operator()<Elements::kF32>();
  }
  if (args.table.tiles > 1) {
    const dim3 tiles(static_cast<unsigned>(args.table.tiles - 1), columns.blocks);
    LaunchKernel(launch, tiles, columns.threads, 0, JoinTilesKernel<Mix>, args);
  }
  if (table && !args.table.accumulate && args.table.vocab > 0) {
    const auto blocks = static_cast<unsigned>(CeilDiv(args.table.vocab * kWarp, kMaxThreads));
    LaunchKernel(launch, blocks, kMaxThreads, 0, ZeroUnnamedKernel<Mix>, args);
  }
}

}  // namespace

void LaunchEmbedGrad(const EmbedGradArgs& args, const Launch& launch) {
  if (args.columns == 0) return;
  const Elements elements =
      ElementsOf({args.d_out}, {args.table.d_table, args.positions.d_positions});
  WithMixOf(elements, [&]<Elements Mix>() { LaunchAll<Mix>(args, launch); });
}

}  // namespace millrace::cuda
