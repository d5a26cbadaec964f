// What the kernels of AdamW share: factors of a step, the direction of an update.
#pragma once

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/flat.cuh"
#include "kernels/cuda/step/update_launch.h"

namespace millrace::cuda {

// Everything that is equal for all elements, rounded to float once.
struct Factors {
  float clip, beta1, beta2, one_minus_beta1, one_minus_beta2;
  float step;                // lr / (1 - beta1^t)
  float inverse_sqrt_bias2;  // 1 / sqrt(1 - beta2^t)
  float eps;
  float keep;  // 1 - lr * weight_decay
  bool applied;
};

// By the first threads of two warps, so that both powers (hundreds of instructions each) form at
// once. The caller synchronises.
__device__ __forceinline__ void FormFactors(const AdamWArgs& a, Factors& factors) {
  const StepScalars& s = *a.scalars;
  const auto f = [](double value) { return __double2float_rn(value); };
  if (threadIdx.x == 0) {
    const double lr = __dmul_rn(s.lr, a.lr_scale);
    factors.applied = s.applied != 0;
    factors.clip = f(s.clip_scale);
    factors.beta1 = f(a.beta1), factors.one_minus_beta1 = f(__dsub_rn(1, a.beta1));
    factors.keep = f(__dsub_rn(1, __dmul_rn(lr, a.weight_decay)));
    factors.step = f(__ddiv_rn(lr, __dsub_rn(1, pow(a.beta1, static_cast<double>(s.adam_t)))));
  } else if (threadIdx.x == kWarp) {
    factors.beta2 = f(a.beta2), factors.one_minus_beta2 = f(__dsub_rn(1, a.beta2));
    factors.eps = f(a.eps);
    const double bias2 = __dsub_rn(1, pow(a.beta2, static_cast<double>(s.adam_t)));
    factors.inverse_sqrt_bias2 = f(__ddiv_rn(1, __dsqrt_rn(bias2)));
  }
}

__device__ __forceinline__ void FormMoments(const Factors& f, float g, float& m, float& v) {
  g = __fmul_rn(g, f.clip);
  m = __fadd_rn(__fmul_rn(f.beta1, m), __fmul_rn(f.one_minus_beta1, g));
  v = __fadd_rn(__fmul_rn(f.beta2, v), __fmul_rn(f.one_minus_beta2, __fmul_rn(g, g)));
}

// m / (sqrt(v) * inverse_sqrt_bias2 + eps), every operation rounded once. The instructions that the
// compiler makes of __fsqrt_rn and __fdiv_rn, without a branch for each: the elements of a unit run
// side by side. Where those would leave their fast path (or might: the bounds of the division are
// tighter) the intrinsics do it.
template <int W>
__device__ __forceinline__ void Directions(const Factors& f, const float (&m)[W],
                                           const float (&v)[W], float (&out)[W]) {
  bool fast = true;
#pragma unroll
  for (int i = 0; i < W; ++i) {
    float rsqrt, reciprocal;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(rsqrt) : "f"(v[i]));
    const float guess = __fmul_rn(v[i], rsqrt), half = __fmul_rn(rsqrt, 0.5f);
    const float root = __fmaf_rn(__fmaf_rn(-guess, guess, v[i]), half, guess);
    const float denominator = __fadd_rn(__fmul_rn(root, f.inverse_sqrt_bias2), f.eps);
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(denominator));
    const float inverse =
        __fmaf_rn(reciprocal, __fmaf_rn(-denominator, reciprocal, 1.0f), reciprocal);
    const float quotient = __fmul_rn(m[i], inverse);
    out[i] = __fmaf_rn(inverse, __fmaf_rn(-denominator, quotient, m[i]), quotient);
    // v in [2^-101, infinity), m in [2^-100, 2^60), denominator in [2^-60, 2^20): no step is
    // subnormal, and remainders are exact.
    const auto within = [](float x, uint32_t low, uint32_t high) {
      return __float_as_uint(x) - low < high - low;
    };
    fast &= within(v[i], 26u << 23, 255u << 23);
    fast &= within(fabsf(m[i]), 27u << 23, 187u << 23);
    fast &= within(denominator, 67u << 23, 147u << 23);
  }
  if (fast) return;
#pragma unroll
  for (int i = 0; i < W; ++i)
    out[i] = __fdiv_rn(m[i], __fadd_rn(__fmul_rn(__fsqrt_rn(v[i]), f.inverse_sqrt_bias2), f.eps));
}

// Mix, here and below: of the gradient and the compute weights.
template <Elements Mix, int W>
__device__ __forceinline__ void StoreCompute(const AdamWArgs& a, int64_t unit,
                                             const float (&w)[W]) {
  if (a.compute.data == nullptr) return;
  if (AreShort<Mix>(a.compute))
    StoreUnit<kShortOf<Mix>, W>(a.compute, unit, Narrow<kShortOf<Mix>, W>(w));
  else
    StoreUnit<Elements::kF32, W>(a.compute, unit, Narrow<Elements::kF32, W>(w));
}

// Weights w of a unit, moved along `direction`, to their places; bit i of `decay`: w[i] decays.
template <Elements Mix, int W>
__device__ __forceinline__ void Move(const AdamWArgs& a, const Factors& f, int64_t unit,
                                     const float (&direction)[W], unsigned decay, float (&w)[W]) {
  constexpr Elements kF32 = Elements::kF32;
#pragma unroll
  for (int i = 0; i < W; ++i) {
    const float keep = decay >> i & 1 ? f.keep : 1.0f;
    w[i] = __fsub_rn(__fmul_rn(w[i], keep), __fmul_rn(f.step, direction[i]));
  }
  StoreUnit<kF32, W>(a.master, unit, Narrow<kF32, W>(w));
  StoreCompute<Mix, W>(a, unit, w);
}

// A unit of a shard whose moments are f32.
template <Elements Grad, int W>
struct State {
  Unit<Elements::kF32, W> master, m, v;
  Unit<Grad, W> grad;
};

template <Elements Grad, int W>
__device__ __forceinline__ State<Grad, W> LoadState(const AdamWArgs& a, int64_t unit) {
  constexpr Elements kF32 = Elements::kF32;
  return {LoadUnit<kF32, W>(a.master, unit), LoadUnit<kF32, W>(a.m, unit),
          LoadUnit<kF32, W>(a.v, unit), LoadUnit<Grad, W>(a.grad, unit)};
}

template <Elements Grad, Elements Mix, int W>
__device__ __forceinline__ void Update(const AdamWArgs& a, const Factors& f,
                                       const State<Grad, W>& state, int64_t unit, unsigned decay) {
  constexpr Elements kF32 = Elements::kF32;
  float w[W], m[W], v[W], g[W], direction[W];
  Widen<kF32, W>(state.master, w), Widen<kF32, W>(state.m, m), Widen<kF32, W>(state.v, v);
  Widen<Grad, W>(state.grad, g);
#pragma unroll
  for (int i = 0; i < W; ++i) FormMoments(f, g[i], m[i], v[i]);
  StoreUnit<kF32, W>(a.m, unit, Narrow<kF32, W>(m));
  StoreUnit<kF32, W>(a.v, unit, Narrow<kF32, W>(v));
  Directions<W>(f, m, v, direction);
  Move<Mix, W>(a, f, unit, direction, decay, w);
}

// Of a step that is not applied: the downcast alone.
template <Elements Mix, int W>
__device__ __forceinline__ void StoreAsItIs(const AdamWArgs& a, int64_t unit) {
  float w[W];
  Widen<Elements::kF32, W>(LoadUnit<Elements::kF32, W>(a.master, unit), w);
  StoreCompute<Mix, W>(a, unit, w);
}

// f.operator()<Grad, Mix>() with what the operands have.
template <class F>
void WithDTypes(const AdamWArgs& a, F&& f) {
  WithMixOf(ElementsOf({a.grad}, {a.compute}), [&]<Elements Mix>() {
    if (a.grad.bf16 || a.grad.f16)
      f.template operator()<kShortOf<Mix>, Mix>();
    else
      f.template operator()<Elements::kF32, Mix>();
  });
}

}  // namespace millrace::cuda
