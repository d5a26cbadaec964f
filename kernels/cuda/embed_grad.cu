#include <algorithm>

#include "kernels/cuda/embed_grad_launch.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {
namespace {

constexpr int kTile = EmbedGradScratch::kSumTile;
constexpr int kMaxThreads = 256;            // a thread is one pack of columns; wider rows take several blocks
constexpr int kUnroll = 8;                  // rows that are in flight
constexpr int kFromLeft = 0, kToRight = 1;  // the two partial sums of a tile

__device__ __forceinline__ void AddTo(Floats& sum, const Floats& x) {
#pragma unroll
  for (int i = 0; i < kPack; ++i) sum.v[i] = __fadd_rn(sum.v[i], x.v[i]);
}

// First column of this thread; blockIdx.y counts blocks of columns.
__device__ __forceinline__ int Column() {
  return static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kPack;
}

__device__ __forceinline__ Rows PartialOf(const TableGradArgs& a, int64_t tile, int which) {
  Rows rows;
  rows.data = reinterpret_cast<std::byte*>(a.partials + (tile * 2 + which) * a.columns);
  rows.wide = a.columns % 4 == 0;  // scratch is aligned
  return rows;
}

// Block x: the sorted rows [64 x, 64 x + 64). Runs of one token that lie inside reach d_table; a run that
// crosses a border of the tile leaves its sum in partials.
template <Elements E>
__global__ void __launch_bounds__(kMaxThreads) TileSumsKernel(const TableGradArgs a) {
  __shared__ int32_t key[kTile + 2];  // with the neighbours on either side, -1 where there is none
  __shared__ int32_t row[kTile];
  const int64_t begin = int64_t{blockIdx.x} * kTile;
  const int n = static_cast<int>(min(int64_t{kTile}, a.rows - begin));
  for (int i = static_cast<int>(threadIdx.x); i < n + 2; i += static_cast<int>(blockDim.x)) {
    const int64_t at = begin + i - 1;
    key[i] = at >= 0 && at < a.rows ? a.keys[at] : -1;
  }
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x))
    row[i] = a.order[begin + i];
  __syncthreads();
  const int c = Column(), left = a.columns - c;
  if (left <= 0) return;

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
      const bool from_left = run == 0 && key[0] == token, to_right = i + 1 == n && key[n + 1] == token;
      if (from_left || to_right)
        Store<Elements::kF32>(PartialOf(a, blockIdx.x, from_left ? kFromLeft : kToRight), c, left, sum);
      else
        StoreOrAdd<Elements::kAny>(a.d_table, token * a.d_table.stride + c, left, sum, a.accumulate);
      sum = {};
      run = i + 1;
    }
  }
}

// Block x: the token whose rows begin in tile x and go on to the right, if there is one. Adds its parts.
__global__ void __launch_bounds__(kMaxThreads) JoinTilesKernel(const TableGradArgs a) {
  const int64_t tile = blockIdx.x, next = (tile + 1) * kTile;
  if (next >= a.rows) return;
  const int32_t token = a.keys[next - 1];
  if (a.keys[next] != token || a.begins[token] < tile * kTile) return;
  const int c = Column(), left = a.columns - c;
  if (left <= 0) return;
  Floats sum = Load<Elements::kF32>(PartialOf(a, tile, kToRight), c, left);
  const int64_t last = (int64_t{a.begins[token + 1]} - 1) / kTile;
  for (int64_t first = tile + 1; first <= last; first += kUnroll) {
    Raw<Elements::kF32> raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (first + u <= last) raw[u] = LoadRaw<Elements::kF32>(PartialOf(a, first + u, kFromLeft), c, left);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (first + u <= last) AddTo(sum, ToFloats<Elements::kF32>(Rows{}, raw[u]));
  }
  StoreOrAdd<Elements::kAny>(a.d_table, token * a.d_table.stride + c, left, sum, a.accumulate);
}

// Rows of the table that no token names become zero. A warp is a row.
__global__ void __launch_bounds__(kMaxThreads) ZeroUnnamedKernel(const TableGradArgs a) {
  const int64_t v = (int64_t{blockIdx.x} * kMaxThreads + threadIdx.x) / kWarp;
  if (v >= a.vocab || a.begins[v] != a.begins[v + 1]) return;
  for (int c = static_cast<int>(threadIdx.x) % kWarp * kPack; c < a.columns; c += kWarp * kPack)
    Store<Elements::kAny>(a.d_table, v * a.d_table.stride + c, a.columns - c, Floats{});
}

// d_positions[t] (=|+=) sum over b of d_out[b*T + t]; block x is t.
template <Elements E>
__global__ void __launch_bounds__(kMaxThreads) PositionsGradKernel(const PositionsGradArgs a) {
  const int c = Column(), left = a.columns - c;
  if (left <= 0) return;
  const int64_t t = blockIdx.x;
  Floats sum = {};
  for (int64_t first = 0; first < a.batch; first += kUnroll) {
    Raw<E> raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (first + u < a.batch)
        raw[u] = LoadRaw<E>(a.d_out, ((first + u) * a.length + t) * a.d_out.stride + c, left);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (first + u < a.batch) AddTo(sum, ToFloats<E>(a.d_out, raw[u]));
  }
  StoreOrAdd<Elements::kAny>(a.d_positions, t * a.d_positions.stride + c, left, sum, a.accumulate);
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

}  // namespace

void LaunchTableGrad(const TableGradArgs& args, const Launch& launch) {
  if (args.columns == 0 || args.vocab == 0) return;
  if (args.rows > 0) {
    const Columns columns(args.columns);
    const dim3 grid(static_cast<unsigned>(CeilDiv(args.rows, kTile)), columns.blocks);
    if (args.d_out.bf16)
      TileSumsKernel<Elements::kBF16><<<grid, columns.threads, 0, launch.stream>>>(args);
    else
      TileSumsKernel<Elements::kF32><<<grid, columns.threads, 0, launch.stream>>>(args);
    MR_CUDA_LAUNCHED();
    JoinTilesKernel<<<grid, columns.threads, 0, launch.stream>>>(args);
    MR_CUDA_LAUNCHED();
  }
  if (args.accumulate) return;
  const auto blocks = static_cast<unsigned>(CeilDiv(args.vocab * kWarp, kMaxThreads));
  ZeroUnnamedKernel<<<blocks, kMaxThreads, 0, launch.stream>>>(args);
  MR_CUDA_LAUNCHED();
}

void LaunchPositionsGrad(const PositionsGradArgs& args, const Launch& launch) {
  if (args.columns == 0 || args.length == 0) return;
  const Columns columns(args.columns);
  const dim3 grid(static_cast<unsigned>(args.length), columns.blocks);
  if (args.d_out.bf16)
    PositionsGradKernel<Elements::kBF16><<<grid, columns.threads, 0, launch.stream>>>(args);
  else
    PositionsGradKernel<Elements::kF32><<<grid, columns.threads, 0, launch.stream>>>(args);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace::cuda
