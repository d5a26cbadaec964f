// Activations of one element, and their derivatives.
#pragma once

#include "kernels/cuda/sigmoid.cuh"
#include "runtime/base/policies.h"

namespace millrace::cuda {

// tanh-GELU: 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
inline constexpr float kGeluLinear = 1.5957691216057308f;  // 2 sqrt(2/pi)
inline constexpr float kGeluCubic = 0.07135481627159262f;  // 0.044715 * that

__device__ __forceinline__ float GeluSigmoid(float x) {
  return Sigmoid(__fmul_rn(x, __fmaf_rn(kGeluCubic, __fmul_rn(x, x), kGeluLinear)));
}

__device__ __forceinline__ float GeluDerivative(float x) {
  const float s = GeluSigmoid(x);
  return __fmaf_rn(__fmul_rn(__fmul_rn(x, s), __fsub_rn(1.0f, s)),
                   __fmaf_rn(3.0f * kGeluCubic, __fmul_rn(x, x), kGeluLinear), s);
}

// NaN stays NaN.
__device__ __forceinline__ float Relu(float x) { return x < 0.0f ? 0.0f : x; }

// Known when it is compiled: IsGated is a function of the host.
template <ActivationKind kind>
inline constexpr bool kGated = IsGated(kind);

// Of a gated kind x is the gate.
template <ActivationKind kind>
__device__ __forceinline__ float Activate(float x, float up) {
  if constexpr (kGated<kind>) return __fmul_rn(__fmul_rn(x, Sigmoid(x)), up);
  return __fmul_rn(kind == ActivationKind::kRelu2 ? Relu(x) : GeluSigmoid(x), x);
}

}  // namespace millrace::cuda
