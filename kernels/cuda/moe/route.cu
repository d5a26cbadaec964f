#include <cmath>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe/route_launch.h"
#include "kernels/cuda/pack.cuh"

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
  LeaveTopGroups(a, keys, values, lane, taken);
  int32_t* ids = a.ids + int64_t{row} * a.top_k;
  int mine = 0;  // lane k has the k-th choice
  for (int k = 0; k < a.top_k; ++k) {
    const int e = TakeLargest(keys, a.experts, lane, taken);
    if (lane == k) mine = e;
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

// The formulas of kernels/cpu/route.cc.
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

}  // namespace millrace::cuda
