#include "kernels/cuda/embed_grad_launch.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {
namespace {

// A block sorts kSortTile rows by one digit. Its warps take consecutive stretches of them, a stretch 32 rows
// at a time: "earlier in the tile" is "lower warp, earlier round, lower lane".
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTile = EmbedGradScratch::kSortTile;
constexpr int kRounds = kTile / kThreads;
constexpr int kMaxDigits = 1 << EmbedGradScratch::kMaxDigitBits;
constexpr unsigned kAllLanes = 0xffffffffu;

struct Pass {
  TokenSortArgs a;
  int shift = 0, from = 0;  // from: of keys and order; -1: the tokens themselves
  int blocks = 0;

  __device__ int digits() const { return 1 << a.digit_bits; }
  __device__ int32_t Key(int64_t i) const { return from < 0 ? TokenAt(a.tokens, i) : a.keys[from][i]; }
  __device__ int Digit(int32_t key) const { return key >> shift & (digits() - 1); }
};

// Row of the tile that this thread looks at in a round.
__device__ int64_t RowOf(int round) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  return int64_t{blockIdx.x} * kTile + (warp * kRounds + round) * kWarp + lane;
}

// counts[digit][block]: rows of the block's tile with that digit. Integer atomics: the order is no matter.
__global__ void __launch_bounds__(kThreads) CountDigitsKernel(const Pass pass) {
  __shared__ int count[kMaxDigits];
  for (int d = static_cast<int>(threadIdx.x); d < pass.digits(); d += kThreads) count[d] = 0;
  __syncthreads();
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = RowOf(round);
    if (i < pass.a.rows) atomicAdd(&count[pass.Digit(pass.Key(i))], 1);
  }
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < pass.digits(); d += kThreads)
    pass.a.counts[int64_t{d} * pass.blocks + blockIdx.x] = count[d];
}

// counts[i] = sum of counts[j] for j < i; one block.
__global__ void __launch_bounds__(1024) ScanCountsKernel(int32_t* counts, const int64_t n) {
  __shared__ int of_warp[32];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int carry = 0;
  for (int64_t base = 0; base < n; base += 1024) {
    const int64_t i = base + threadIdx.x;
    const int own = i < n ? counts[i] : 0;
    int sum = own;  // of lanes up to this one
    for (int d = 1; d < kWarp; d *= 2) {
      const int below = __shfl_up_sync(kAllLanes, sum, d);
      if (lane >= d) sum += below;
    }
    if (lane == kWarp - 1) of_warp[warp] = sum;
    __syncthreads();
    int before = carry, total = 0;
    for (int w = 0; w < 32; ++w) {
      if (w < warp) before += of_warp[w];
      total += of_warp[w];
    }
    if (i < n) counts[i] = before + sum - own;
    carry += total;
    __syncthreads();
  }
}

// Moves each row to its place: counts is where the block's rows of a digit begin.
__global__ void __launch_bounds__(kThreads) ScatterDigitsKernel(const Pass pass, const int to) {
  __shared__ int next[kWarps][kMaxDigits];  // first how many, then where a warp's next row of a digit goes
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const unsigned lower = (1u << lane) - 1;
  for (int d = static_cast<int>(threadIdx.x); d < kWarps * kMaxDigits; d += kThreads) (&next[0][0])[d] = 0;
  __syncthreads();

  int32_t key[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = RowOf(round);
    key[round] = i < pass.a.rows ? pass.Key(i) : -1;
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const bool valid = RowOf(round) < pass.a.rows;
    const int digit = valid ? pass.Digit(key[round]) : -1;
    const unsigned peers = __match_any_sync(kAllLanes, digit);
    if (valid && (peers & lower) == 0) next[warp][digit] += __popc(peers);
    __syncwarp();
  }
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < pass.digits(); d += kThreads) {
    int place = pass.a.counts[int64_t{d} * pass.blocks + blockIdx.x];
    for (int w = 0; w < kWarps; ++w) {
      const int count = next[w][d];
      next[w][d] = place;
      place += count;
    }
  }
  __syncthreads();
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = RowOf(round);
    const bool valid = i < pass.a.rows;
    const int digit = valid ? pass.Digit(key[round]) : -1;
    const unsigned peers = __match_any_sync(kAllLanes, digit);
    const int place = valid ? next[warp][digit] + __popc(peers & lower) : 0;
    __syncwarp();
    if (valid) {
      if ((peers & lower) == 0) next[warp][digit] += __popc(peers);
      pass.a.keys[to][place] = key[round];
      pass.a.order[to][place] = pass.from < 0 ? static_cast<int32_t>(i) : pass.a.order[pass.from][i];
    }
    __syncwarp();
  }
}

// begins[v]: the number of sorted keys below v, by bisection.
__global__ void __launch_bounds__(kThreads)
    BeginsKernel(const int32_t* keys, int32_t* begins, const int32_t rows, const int64_t vocab) {
  const int64_t v = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (v > vocab) return;
  int32_t low = 0, high = rows;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (keys[middle] < v)
      low = middle + 1;
    else
      high = middle;
  }
  begins[v] = low;
}

}  // namespace

void LaunchTokenSort(const TokenSortArgs& args, const Launch& launch) {
  const auto blocks = static_cast<int>(CeilDiv(args.rows, kTile));
  for (int p = 0; p < args.passes && blocks > 0; ++p) {
    const int to = p % 2;
    const Pass pass{args, p * args.digit_bits, p == 0 ? -1 : 1 - to, blocks};
    CountDigitsKernel<<<blocks, kThreads, 0, launch.stream>>>(pass);
    MR_CUDA_LAUNCHED();
    ScanCountsKernel<<<1, 1024, 0, launch.stream>>>(args.counts, (int64_t{1} << args.digit_bits) * blocks);
    MR_CUDA_LAUNCHED();
    ScatterDigitsKernel<<<blocks, kThreads, 0, launch.stream>>>(pass, to);
    MR_CUDA_LAUNCHED();
  }
  BeginsKernel<<<static_cast<unsigned>(CeilDiv(args.vocab + 1, kThreads)), kThreads, 0, launch.stream>>>(
      args.keys[(args.passes - 1) % 2], args.begins, static_cast<int32_t>(args.rows), args.vocab);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace::cuda
