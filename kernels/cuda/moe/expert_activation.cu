#include <algorithm>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/moe/expert_activation_launch.h"
#include "kernels/cuda/pack.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// A block has a slot at a time: its weight's gradient is a sum over the row.
constexpr int kThreads = 128;
constexpr int kBlocksPerSm = 16;

// act(x), gated by `up` if it is gated; and its derivatives by x and by `up`.
template <ActivationKind kind>
__device__ __forceinline__ float Act(float x, float up) {
  if constexpr (kind == ActivationKind::kGelu) return __fmul_rn(x, GeluSigmoid(x));
  if constexpr (kind == ActivationKind::kRelu2) return __fmul_rn(Relu(x), x);
  return __fmul_rn(__fmul_rn(x, Sigmoid(x)), up);
}
template <ActivationKind kind>
__device__ __forceinline__ float2 ActSlopes(float x, float up) {
  if constexpr (kind == ActivationKind::kGelu) return make_float2(GeluDerivative(x), 0);
  if constexpr (kind == ActivationKind::kRelu2) return make_float2(__fmul_rn(2.0f, Relu(x)), 0);
  const float s = Sigmoid(x), silu = __fmul_rn(x, s);
  return make_float2(__fmul_rn(up, __fadd_rn(s, __fmul_rn(silu, __fsub_rn(1.0f, s)))), silu);
}

template <ActivationKind kind>
__device__ __forceinline__ Floats UpOf(const ExpertActivationArgs& a, int64_t slot, int c) {
  if constexpr (kGated<kind>)
    return Load<Elements::kAny>(a.x, slot * a.x.stride + a.columns + c, a.columns - c);
  return {};
}

template <ActivationKind kind>
__global__ void __launch_bounds__(kThreads) ForwardKernel(const ExpertActivationArgs a) {
  BeginKernel();
  const int64_t live = *a.live;
  for (int64_t slot = blockIdx.x; slot < live; slot += gridDim.x) {
    const float weight = a.weights[slot];
    for (int c = static_cast<int>(threadIdx.x) * kPack; c < a.columns; c += kThreads * kPack) {
      const Floats x = Load<Elements::kAny>(a.x, slot * a.x.stride + c, a.columns - c),
                   up = UpOf<kind>(a, slot, c);
      Floats y;
#pragma unroll
      for (int i = 0; i < kPack; ++i) y.v[i] = __fmul_rn(weight, Act<kind>(x.v[i], up.v[i]));
      Store<Elements::kAny>(a.out, slot * a.out.stride + c, a.columns - c, y);
    }
  }
}

template <ActivationKind kind>
__global__ void __launch_bounds__(kThreads) GradKernel(const ExpertActivationArgs a) {
  __shared__ double sums[kWarp];
  BeginKernel();
  const int64_t live = *a.live;
  for (int64_t slot = blockIdx.x; slot < live; slot += gridDim.x) {
    const float weight = a.weights[slot];
    double d_weight = 0;
    for (int c = static_cast<int>(threadIdx.x) * kPack; c < a.columns; c += kThreads * kPack) {
      const int left = a.columns - c;
      const Floats x = Load<Elements::kAny>(a.x, slot * a.x.stride + c, left),
                   up = UpOf<kind>(a, slot, c),
                   dy = Load<Elements::kAny>(a.d_out, slot * a.d_out.stride + c, left);
      Floats d_x, d_up;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float2 slopes = ActSlopes<kind>(x.v[i], up.v[i]);
        const float d = __fmul_rn(weight, dy.v[i]);
        d_x.v[i] = __fmul_rn(slopes.x, d);
        d_up.v[i] = __fmul_rn(slopes.y, d);
        // Beyond the row dy is 0, and so is all else.
        d_weight = __fma_rn(static_cast<double>(Act<kind>(x.v[i], up.v[i])),
                            static_cast<double>(dy.v[i]), d_weight);
      }
      const int64_t at = slot * a.d_x.stride + c;
      Store<Elements::kAny>(a.d_x, at, left, d_x);
      if constexpr (kGated<kind>) Store<Elements::kAny>(a.d_x, at + a.columns, left, d_up);
    }
    const double sum = BlockSum(d_weight, sums);
    if (threadIdx.x == 0) a.d_weights[slot] = static_cast<float>(sum);
    __syncthreads();  // `sums` is free again
  }
}

// f.operator()<kind>().
template <class F>
void ForKind(ActivationKind kind, F&& f) {
  switch (kind) {
    case ActivationKind::kGelu:
      return f.template operator()<ActivationKind::kGelu>();
    case ActivationKind::kSwiglu:
      return f.template operator()<ActivationKind::kSwiglu>();
    case ActivationKind::kRelu2:
      return f.template operator()<ActivationKind::kRelu2>();
  }
}

unsigned Blocks(const ExpertActivationArgs& args, const Launch& launch) {
  return static_cast<unsigned>(std::min<int64_t>(args.slots, int64_t{kBlocksPerSm} * launch.sms));
}

}  // namespace

void LaunchExpertActivation(const ExpertActivationArgs& args, ActivationKind kind,
                            const Launch& launch) {
  if (args.slots == 0) return;
  ForKind(kind, [&]<ActivationKind k>() {
    LaunchKernel(launch, Blocks(args, launch), kThreads, 0, ForwardKernel<k>, args);
  });
}

void LaunchExpertActivationGrad(const ExpertActivationArgs& args, ActivationKind kind,
                                const Launch& launch) {
  if (args.slots == 0) return;
  ForKind(kind, [&]<ActivationKind k>() {
    LaunchKernel(launch, Blocks(args, launch), kThreads, 0, GradKernel<k>, args);
  });
}

}  // namespace millrace::cuda
