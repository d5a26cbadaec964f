#include "kernels/cuda/cache/cache_launch.h"
#include "kernels/cuda/cache/elements.cuh"
#include "kernels/cuda/sigmoid.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// Whether row r is the first of those of its sequence, which one block takes one after the other.
__device__ __forceinline__ bool Begins(const int32_t* slots, int r) {
  return r == 0 || slots[r - 1] != slots[r];
}

// log(1 + e^v): log1p does not lose the small results.
__device__ __forceinline__ float Softplus(float v) {
  return v > 20 ? v : static_cast<float>(log1p(exp(static_cast<double>(v))));
}

// A block per first row of a sequence and kThreads channels, or heads.
template <class T>
__global__ void __launch_bounds__(kThreads) MambaConvRowsKernel(const MambaConvRowsArgs a) {
  BeginKernel();
  const int first = static_cast<int>(blockIdx.x), slot = a.slots[first];
  if (slot >= 0 && !Begins(a.slots, first)) return;
  const int c = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  T* const ring = reinterpret_cast<T*>(a.inputs) + static_cast<int64_t>(slot) * a.taps * a.channels;
  for (int r = first; r < a.rows && a.slots[r] == slot; ++r) {
    const int t = a.at[r];
    if (c < a.channels) {
      T* const out = reinterpret_cast<T*>(a.out) + r * a.out_stride;
      if (slot < 0) {
        Put(out, c, 0.0f);
      } else {
        ring[t % a.taps * a.channels + c] = reinterpret_cast<const T*>(a.x)[r * a.x_stride + c];
        float u = LoadAny(a.bias, c, a.bias_bf16);
        for (int k = 0; k < a.taps; ++k)
          if (const int source = t - (a.taps - 1) + k; source >= 0)
            u += LoadAny(a.weight, static_cast<int64_t>(c) * a.taps + k, a.weight_bf16) *
                 Load(ring, static_cast<int64_t>(source % a.taps) * a.channels + c);
        Put(out, c, u * Sigmoid(u));
      }
    }
    if (c < a.heads)
      a.dt[static_cast<int64_t>(r) * a.heads + c] =
          slot < 0 ? 0.0f
                   : fminf(fmaxf(Softplus(Load(reinterpret_cast<const T*>(a.dt_raw),
                                               r * a.dt_raw_stride + c) +
                                          LoadAny(a.dt_bias, c, a.dt_bias_bf16)),
                                 a.dt_min),
                           a.dt_max);
    if (slot < 0) return;  // nobody's rows are one each
  }
}

// A block per first row of a sequence and head; a warp per channel, its lanes over the states,
// which they alone read and write.
template <class T>
__global__ void __launch_bounds__(kThreads) SsdScanRowsKernel(const SsdScanRowsArgs a) {
  BeginKernel();
  const int first = static_cast<int>(blockIdx.x), h = static_cast<int>(blockIdx.y);
  const int slot = a.slots[first];
  if (slot >= 0 && !Begins(a.slots, first)) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp, inner = a.heads * a.channels,
            group = h / (a.heads / a.groups);
  const float decay = -expf(LoadAny(a.a_log, h, a.a_log_bf16)), d = LoadAny(a.d, h, a.d_bf16);
  for (int r = first; r < a.rows && a.slots[r] == slot; ++r) {
    T* const out = reinterpret_cast<T*>(a.out) + r * a.out_stride + h * a.channels;
    const T* const row = reinterpret_cast<const T*>(a.xbc) + r * a.xbc_stride;
    const T *const b = row + inner + group * a.states, *const c = row + inner +
                                                                  (a.groups + group) * a.states;
    const float dt = a.dt[static_cast<int64_t>(r) * a.heads + h], keep = expf(dt * decay);
    for (int p = warp; p < a.channels; p += kWarps) {
      if (slot < 0) {
        if (lane == 0) Put(out, p, 0.0f);
        continue;
      }
      float* const state =
          a.state + ((static_cast<int64_t>(slot) * a.heads + h) * a.channels + p) * a.states;
      const float x = Load(row, h * a.channels + p);
      float sum = 0;
      for (int n = lane; n < a.states; n += kWarp) {
        const float before = a.at[r] == 0 ? 0.0f : state[n];
        const float now = keep * before + dt * x * Load(b, n);
        state[n] = now;
        sum += now * Load(c, n);
      }
      sum = WarpSum(sum);
      if (lane == 0) Put(out, p, sum + d * x);
    }
    if (slot < 0) return;  // nobody's rows are one each
  }
}

}  // namespace

void LaunchMambaConvRows(const MambaConvRowsArgs& args, bool bf16, const Launch& launch) {
  const int most = args.channels > args.heads ? args.channels : args.heads;
  const dim3 grid(static_cast<unsigned>(args.rows),
                  static_cast<unsigned>((most + kThreads - 1) / kThreads));
  if (bf16)
    LaunchKernel(launch, grid, kThreads, 0, MambaConvRowsKernel<uint16_t>, args);
  else
    LaunchKernel(launch, grid, kThreads, 0, MambaConvRowsKernel<float>, args);
}

void LaunchSsdScanRows(const SsdScanRowsArgs& args, bool bf16, const Launch& launch) {
  const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>(args.heads));
  if (bf16)
    LaunchKernel(launch, grid, kThreads, 0, SsdScanRowsKernel<uint16_t>, args);
  else
    LaunchKernel(launch, grid, kThreads, 0, SsdScanRowsKernel<float>, args);
}

}  // namespace millrace::cuda
