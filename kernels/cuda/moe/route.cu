#include <cmath>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/moe/route_launch.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/ops/cuda_blocking.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// A warp works on a row: lane l on experts l, l + 32 and so on. What lanes tell each other is in
// shared memory, 3 * experts floats for each warp.
constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr unsigned kAll = 0xffffffffu;
constexpr float kTiny = 1e-20f;  // keeps a sum of vanishing sigmoids from being a divisor of zero

__device__ __forceinline__ float WarpMax(float v) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) v = fmaxf(v, __shfl_xor_sync(kAll, v, lane));
  return v;
}

__device__ void FindScores(const RouteArgs& a, const float* logits, int lane, float* scores) {
  if (a.sigmoid) {
    for (int e = lane; e < a.experts; e += kWarp) scores[e] = Sigmoid(logits[e]);
    __syncwarp();
    return;
  }
  float largest = -INFINITY;
  for (int e = lane; e < a.experts; e += kWarp) largest = fmaxf(largest, logits[e]);
  largest = WarpMax(largest);
  float sum = 0;
  for (int e = lane; e < a.experts; e += kWarp) {
    scores[e] = expf(__fsub_rn(logits[e], largest));
    sum = __fadd_rn(sum, scores[e]);
  }
  const float scale = __frcp_rn(WarpSum(sum));
  for (int e = lane; e < a.experts; e += kWarp) scores[e] = __fmul_rn(scores[e], scale);
  __syncwarp();
}

// The index of the largest of n keys that are not taken, the lower one of equals, in every lane.
// Bit i of `taken` is index 32 i + lane's; the one found is taken.
__device__ int TakeLargest(const float* keys, int n, int lane, uint32_t& taken) {
  float best = -INFINITY;
  int at = n;
  for (int i = lane, bit = 0; i < n; i += kWarp, ++bit)
    if (!(taken >> bit & 1u) && (at == n || keys[i] > best)) best = keys[i], at = i;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAll, best, step);
    const int other_at = __shfl_xor_sync(kAll, at, step);
    if (other_at < n && (at == n || other > best || (other == best && other_at < at)))
      best = other, at = other_at;
  }
  if (at % kWarp == lane) taken |= 1u << (at / kWarp);
  return at;
}

// Takes all experts that are not in the groups of largest value. A lane finds the two largest keys
// of a group.
__device__ void LeaveTopGroups(const RouteArgs& a, const float* keys, float* values, int lane,
                               uint32_t& taken) {
  if (a.top_groups == a.groups) return;
  const int size = a.experts / a.groups;
  for (int g = lane; g < a.groups; g += kWarp) {
    float first = keys[g * size], second = -INFINITY;
    for (int e = 1; e < size; ++e) {
      const float key = keys[g * size + e];
      if (key > first)
        second = first, first = key;
      else if (key > second)
        second = key;
    }
    values[g] = size > 1 ? __fadd_rn(first, second) : first;
  }
  __syncwarp();
  uint32_t chosen = 0;  // of groups
  for (int k = 0; k < a.top_groups; ++k) TakeLargest(values, a.groups, lane, chosen);
  // Lanes tell each other what they have chosen; keys are not changed.
  for (int g = lane, bit = 0; g < a.groups; g += kWarp, ++bit)
    values[g] = chosen >> bit & 1u ? 1.0f : 0.0f;
  __syncwarp();
  for (int e = lane, bit = 0; e < a.experts; e += kWarp, ++bit)
    if (values[e / size] == 0) taken |= 1u << bit;
}

__device__ float DivisorOf(const RouteArgs& a, const float* scores, const int32_t* ids) {
  if (!a.normalise) return 1;
  float sum = kTiny;
  for (int k = 0; k < a.top_k; ++k) sum = __fadd_rn(sum, scores[ids[k]]);
  return sum;
}

__global__ void __launch_bounds__(kThreads) RouteKernel(const RouteArgs a) {
  extern __shared__ float shared[];
  BeginKernel();
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = static_cast<int>(blockIdx.x) * kWarps + warp;
  if (row >= a.rows) return;
  float *scores = shared + warp * 3 * a.experts, *keys = scores + a.experts,
        *values = keys + a.experts;
  FindScores(a, a.logits + int64_t{row} * a.experts, lane, scores);
  for (int e = lane; e < a.experts; e += kWarp) {
    const float key = a.bias != nullptr ? __fadd_rn(scores[e], a.bias[e]) : scores[e];
    keys[e] = isnan(key) ? -INFINITY : key;
  }
  __syncwarp();
  uint32_t taken = 0;
  int32_t* ids = a.ids + int64_t{row} * a.top_k;
  int mine = 0;  // lane k has the k-th choice
  if (a.balanced_stride > 0) {
    mine = static_cast<int>((int64_t{row} * a.top_k + lane) * a.balanced_stride % a.experts);
  } else {
    LeaveTopGroups(a, keys, values, lane, taken);
    for (int k = 0; k < a.top_k; ++k) {
      const int e = TakeLargest(keys, a.experts, lane, taken);
      if (lane == k) mine = e;
    }
  }
  float divisor = 1;
  if (a.normalise) {
    divisor = kTiny;
    for (int k = 0; k < a.top_k; ++k)
      divisor = __fadd_rn(divisor, scores[__shfl_sync(kAll, mine, k)]);
  }
  if (lane >= a.top_k) return;
  ids[lane] = mine;
  a.weights[int64_t{row} * a.top_k + lane] = __fmul_rn(__fdiv_rn(scores[mine], divisor), a.scaling);
}

// Adds to the gradients of scores what comes by their probabilities; returns what that adds to the
// sum of gradients times scores. A lane touches its own experts only.
__device__ float AddBalance(const RouteArgs& a, const float* b, const float* scores, int lane,
                            float* d_scores) {
  float along = 0, sum = 0;
  for (int e = lane; e < a.experts; e += kWarp) {
    along = __fmaf_rn(b[e], scores[e], along);
    sum = __fadd_rn(sum, scores[e]);
  }
  along = WarpSum(along);
  const float scale = a.sigmoid ? __frcp_rn(WarpSum(sum)) : 1.0f,
              mean = a.sigmoid ? __fmul_rn(along, scale) : 0.0f;
  for (int e = lane; e < a.experts; e += kWarp)
    d_scores[e] = __fadd_rn(d_scores[e], __fmul_rn(__fsub_rn(b[e], mean), scale));
  return a.sigmoid ? 0.0f : along;
}

// The formulas of kernels/cpu/moe/route.cc.
__global__ void __launch_bounds__(kThreads) RouteGradKernel(const RouteArgs a) {
  extern __shared__ float shared[];
  BeginKernel();
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = static_cast<int>(blockIdx.x) * kWarps + warp;
  if (row >= a.rows) return;
  float *scores = shared + warp * 3 * a.experts, *d_scores = scores + a.experts;
  FindScores(a, a.logits + int64_t{row} * a.experts, lane, scores);
  for (int e = lane; e < a.experts; e += kWarp) d_scores[e] = 0;
  __syncwarp();
  const int32_t* ids = a.ids + int64_t{row} * a.top_k;
  const float* d_weights = a.d_weights + int64_t{row} * a.top_k;
  const float divisor = DivisorOf(a, scores, ids);
  float along = 0;  // what the normalisation takes from each
  for (int k = 0; a.normalise && k < a.top_k; ++k)
    along = __fadd_rn(along, __fmul_rn(d_weights[k], __fdiv_rn(scores[ids[k]], divisor)));
  float mean = 0;
  for (int k = 0; k < a.top_k; ++k) {
    const float d = __fmul_rn(__fdiv_rn(__fsub_rn(d_weights[k], along), divisor), a.scaling);
    mean = __fadd_rn(mean, __fmul_rn(d, scores[ids[k]]));
    if (lane == k) d_scores[ids[k]] = d;
  }
  __syncwarp();
  if (a.balance != nullptr)
    mean = __fadd_rn(mean, AddBalance(a, a.balance + int64_t{row / a.group_rows} * a.experts,
                                      scores, lane, d_scores));
  for (int e = lane; e < a.experts; e += kWarp) {
    const float s = scores[e], d = d_scores[e];
    const float d_logit = a.sigmoid ? __fmul_rn(__fmul_rn(d, s), __fsub_rn(1.0f, s))
                                    : __fmul_rn(s, __fsub_rn(d, mean));
    const int64_t at = row * a.d_logits.stride + e;
    if (a.d_logits.bf16)
      reinterpret_cast<uint16_t*>(a.d_logits.data)[at] =
          static_cast<uint16_t>(PairOfBF16(d_logit, 0.0f));
    else
      reinterpret_cast<float*>(a.d_logits.data)[at] = d_logit;
  }
}

// A block sums a tile of a group's rows: each warp every kWarps-th row, then the warps in order.
__global__ void __launch_bounds__(kThreads) RouterStatsKernel(const RouterStatsArgs g) {
  extern __shared__ float shared[];
  BeginKernel();
  const RouteArgs& a = g.route;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  float *scores = shared + warp * 3 * a.experts, *counts = scores + a.experts,
        *sums = counts + a.experts;
  for (int e = lane; e < a.experts; e += kWarp) counts[e] = sums[e] = 0;
  const int tile = static_cast<int>(blockIdx.x), group = static_cast<int>(blockIdx.y);
  const int end = min((tile + 1) * static_cast<int>(kRouterTile), a.group_rows);
  for (int r = tile * static_cast<int>(kRouterTile) + warp; r < end; r += kWarps) {
    const int64_t row = int64_t{group} * a.group_rows + r;
    FindScores(a, a.logits + row * a.experts, lane, scores);
    float sum = 0;
    for (int e = lane; e < a.experts; e += kWarp) sum = __fadd_rn(sum, scores[e]);
    const float scale = a.sigmoid ? __frcp_rn(WarpSum(sum)) : 1.0f;
    for (int e = lane; e < a.experts; e += kWarp) sums[e] = __fmaf_rn(scores[e], scale, sums[e]);
    if (lane < a.top_k) counts[a.ids[row * a.top_k + lane]] += 1.0f;  // of a row all differ
    __syncwarp();
  }
  __syncthreads();
  float* out = g.partials + (int64_t{group} * g.tiles + tile) * 2 * a.experts;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * a.experts; i += kThreads) {
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total = __fadd_rn(total, shared[(w * 3 + 1) * a.experts + i]);
    out[i] = total;
  }
}

__global__ void __launch_bounds__(kThreads) SumTilesKernel(const RouterStatsArgs g) {
  BeginKernel();
  const int columns = 2 * g.route.experts;
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= g.groups * columns) return;
  double total = 0;
  for (int t = 0; t < g.tiles; ++t)
    total += static_cast<double>(
        g.partials[(int64_t{i / columns} * g.tiles + t) * columns + i % columns]);
  g.stats[i] =
      g.accumulate ? __fadd_rn(g.stats[i], static_cast<float>(total)) : static_cast<float>(total);
}

__global__ void __launch_bounds__(kThreads) RouterBalanceKernel(const RouterBalanceArgs a) {
  __shared__ double shared[kWarp];
  BeginKernel();
  const double slope = a.slope_factor * a.scalars->inv_valid_tokens * a.scalars->loss_scale;
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < a.groups * a.experts; i += kThreads) {
    const float* counts = a.stats + int64_t{i / a.experts} * 2 * a.experts + i % a.experts;
    const double count = static_cast<double>(counts[0]);
    sum = __dadd_rn(sum, __dmul_rn(count, static_cast<double>(counts[a.experts])));
    a.balance[i] = static_cast<float>(__dmul_rn(slope, count));
  }
  sum = __dmul_rn(a.loss_factor, BlockSum(sum, shared));
  if (threadIdx.x == 0) *a.loss_sum = a.accumulate ? __dadd_rn(*a.loss_sum, sum) : sum;
}

void LaunchRows(const RouteArgs& args, const Launch& launch, void (*kernel)(RouteArgs)) {
  if (args.rows == 0) return;
  LaunchKernel(launch, static_cast<unsigned>(CeilDiv(args.rows, kWarps)), kThreads,
               static_cast<size_t>(kWarps) * 3 * args.experts * sizeof(float), kernel, args);
}

}  // namespace

void LaunchRoute(const RouteArgs& args, const Launch& launch) {
  LaunchRows(args, launch, RouteKernel);
}
void LaunchRouteGrad(const RouteArgs& args, const Launch& launch) {
  LaunchRows(args, launch, RouteGradKernel);
}

void LaunchRouterStats(const RouterStatsArgs& args, const Launch& launch) {
  const int columns = 2 * args.route.experts;
  if (args.tiles > 0)
    LaunchKernel(launch,
                 dim3(static_cast<unsigned>(args.tiles), static_cast<unsigned>(args.groups)),
                 kThreads, static_cast<size_t>(kWarps) * 3 * args.route.experts * sizeof(float),
                 RouterStatsKernel, args);
  LaunchKernel(launch, static_cast<unsigned>(CeilDiv(args.groups * columns, kThreads)), kThreads, 0,
               SumTilesKernel, args);
}

void LaunchRouterBalance(const RouterBalanceArgs& args, const Launch& launch) {
  LaunchKernel(launch, 1, kThreads, 0, RouterBalanceKernel, args);
}

}  // namespace millrace::cuda
