#include <algorithm>

#include "kernels/cuda/flat.cuh"
#include "kernels/cuda/update_launch.h"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Share of a decay that is over after `done` of `length` steps; a decay of length 0 is over at once.
__device__ double Share(int64_t done, int64_t length) {
  if (done < 0) return 0;
  if (done >= length) return 1;
  return static_cast<double>(done) / static_cast<double>(length);
}

// LearningRateAt of kernels/ops/learning_rate.cc, on the device because the step is there. The cosine may
// differ from the host's in its last bit.
__global__ void BeginStepKernel(StepScalars* scalars, const LearningRate s) {
  const int64_t step = scalars->step;
  double lr = s.lr;
  if (step < s.warmup) {
    lr = __ddiv_rn(__dmul_rn(s.lr, static_cast<double>(step + 1)), static_cast<double>(s.warmup));
  } else if (s.kind == ScheduleKind::kCosine) {
    const double factor = __dadd_rn(1.0, cos(__dmul_rn(kPi, Share(step - s.warmup, s.decay_steps))));
    lr = __dadd_rn(s.min_lr, __ddiv_rn(__dmul_rn(__dsub_rn(s.lr, s.min_lr), factor), 2.0));
  } else if (s.kind == ScheduleKind::kWsd) {
    const double share = Share(step - (s.total_steps - s.decay_steps), s.decay_steps);
    lr = __dadd_rn(s.lr, __dmul_rn(__dsub_rn(s.min_lr, s.lr), share));
  }
  scalars->lr = lr;
}

// Everything that is equal for all elements, rounded to float once.
struct Factors {
  float clip, beta1, beta2, one_minus_beta1, one_minus_beta2;
  float step;                // lr / (1 - beta1^t)
  float inverse_sqrt_bias2;  // 1 / sqrt(1 - beta2^t)
  float eps;
  float keep;  // 1 - lr * weight_decay
};

__device__ Factors FactorsOf(const AdamWArgs& a) {
  const StepScalars& s = *a.scalars;
  const double t = static_cast<double>(s.adam_t);
  const auto f = [](double value) { return __double2float_rn(value); };
  return {f(s.clip_scale),
          f(a.beta1),
          f(a.beta2),
          f(__dsub_rn(1, a.beta1)),
          f(__dsub_rn(1, a.beta2)),
          f(__ddiv_rn(s.lr, __dsub_rn(1, pow(a.beta1, t)))),
          f(__ddiv_rn(1, __dsqrt_rn(__dsub_rn(1, pow(a.beta2, t))))),
          f(a.eps),
          f(__dsub_rn(1, __dmul_rn(s.lr, a.weight_decay)))};
}

// Bit i: element at + i decays.
__device__ __forceinline__ unsigned DecayMask(const Ranges& decay, int64_t at) {
  int low = 0, high = decay.count;  // first range with end > at
  while (low < high) {
    const int middle = (low + high) / 2;
    if (decay.of[middle].end <= at)
      low = middle + 1;
    else
      high = middle;
  }
  unsigned mask = 0;
  for (; low < decay.count && decay.of[low].begin < at + kPack; ++low) {
    const int from = static_cast<int>(max(int64_t{0}, decay.of[low].begin - at));
    const int to = static_cast<int>(min(int64_t{kPack}, decay.of[low].end - at));
    mask |= (1u << to) - (1u << from);
  }
  return mask;
}

// As many as registers allow; the grid is no larger, so that a block forms the factors once.
constexpr int kBlocksPerSm = 3;

struct Pack {
  Raw<Elements::kF32> master, m, v;
};

__device__ __forceinline__ Pack LoadState(const AdamWArgs& a, int64_t at) {
  const int left = Left(a.end, at);
  return {LoadRaw<Elements::kF32>(a.master, at, left), LoadRaw<Elements::kF32>(a.m, at, left),
          LoadRaw<Elements::kF32>(a.v, at, left)};
}

__device__ __forceinline__ Floats Updated(const Factors& f, const Floats& grad, unsigned decay,
                                          const Floats& master, Floats& m, Floats& v) {
  Floats w;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const float g = __fmul_rn(grad.v[i], f.clip);
    m.v[i] = __fadd_rn(__fmul_rn(f.beta1, m.v[i]), __fmul_rn(f.one_minus_beta1, g));
    v.v[i] = __fadd_rn(__fmul_rn(f.beta2, v.v[i]), __fmul_rn(f.one_minus_beta2, __fmul_rn(g, g)));
    const float keep = decay >> i & 1 ? f.keep : 1.0f;
    const float denominator = __fadd_rn(__fmul_rn(__fsqrt_rn(v.v[i]), f.inverse_sqrt_bias2), f.eps);
    w.v[i] = __fsub_rn(__fmul_rn(master.v[i], keep), __fmul_rn(f.step, __fdiv_rn(m.v[i], denominator)));
  }
  return w;
}

template <Elements Grad>
__global__ void __launch_bounds__(kFlatThreads, kBlocksPerSm)
    AdamWKernel(const AdamWArgs a, const __grid_constant__ Ranges decay) {
  __shared__ Factors factors;
  constexpr Elements kF32 = Elements::kF32;
  const int64_t stride = int64_t{gridDim.x} * kFlatThreads * kPack;
  int64_t at = a.begin + (int64_t{blockIdx.x} * kFlatThreads + threadIdx.x) * kPack;
  if (a.scalars->finite == 0) {
    if (a.compute.data == nullptr) return;
    for (; at < a.end; at += stride)
      Store<Elements::kAny>(a.compute, at, Left(a.end, at), Load<kF32>(a.master, at, Left(a.end, at)));
    return;
  }
  // The first loads are under way while one thread raises the betas to the power of t.
  Pack pack{};
  Raw<Grad> grad{};
  if (at < a.end) {
    pack = LoadState(a, at);
    grad = LoadRaw<Grad>(a.grad, at, Left(a.end, at));
  }
  if (threadIdx.x == 0) factors = FactorsOf(a);
  __syncthreads();
  const Factors f = factors;
  while (at < a.end) {
    const int left = Left(a.end, at);
    Floats m = ToFloats<kF32>(a.m, pack.m), v = ToFloats<kF32>(a.v, pack.v);
    const Floats w = Updated(f, ToFloats<Grad>(a.grad, grad), DecayMask(decay, at),
                             ToFloats<kF32>(a.master, pack.master), m, v);
    Store<kF32>(a.m, at, left, m);
    Store<kF32>(a.v, at, left, v);
    Store<kF32>(a.master, at, left, w);
    if (a.compute.data != nullptr) Store<Elements::kAny>(a.compute, at, left, w);
    at += stride;
    if (at < a.end) {
      pack = LoadState(a, at);
      grad = LoadRaw<Grad>(a.grad, at, Left(a.end, at));
    }
  }
}

}  // namespace

void LaunchBeginStep(StepScalars* scalars, const LearningRate& schedule, const Launch& launch) {
  BeginStepKernel<<<1, 1, 0, launch.stream>>>(scalars, schedule);
  MR_CUDA_LAUNCHED();
}

void LaunchAdamW(const AdamWArgs& args, const Ranges& decay, const Launch& launch) {
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(
      CeilDiv(Packs(args.end - args.begin), kFlatThreads), int64_t{launch.sms} * kBlocksPerSm));
  if (args.grad.bf16)
    AdamWKernel<Elements::kBF16><<<blocks, kFlatThreads, 0, launch.stream>>>(args, decay);
  else
    AdamWKernel<Elements::kF32><<<blocks, kFlatThreads, 0, launch.stream>>>(args, decay);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace::cuda
