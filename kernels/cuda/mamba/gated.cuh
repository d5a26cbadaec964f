// The gate of a Mamba-2 mixer, on the device.
#pragma once

#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/sigmoid.cuh"

namespace millrace::cuda {

// silu and its derivative.
struct Silu {
  float value, derivative;
};
__device__ __forceinline__ Silu SiluOf(float x) {
  const float s = Sigmoid(x), silu = __fmul_rn(x, s);
  return {silu, __fmaf_rn(silu, __fsub_rn(1.0f, s), s)};
}

// Element i of a flat view.
__device__ __forceinline__ float ElementOf(const Rows& flat, int64_t i) {
  if (!flat.bf16) return reinterpret_cast<const float*>(flat.data)[i];
  return __uint_as_float(static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(flat.data)[i])
                         << 16);
}

// = or +=, rounded once.
__device__ __forceinline__ void SetElement(const Rows& flat, int64_t i, float v, bool add) {
  if (add) v = __fadd_rn(ElementOf(flat, i), v);
  if (flat.bf16)
    reinterpret_cast<uint16_t*>(flat.data)[i] = static_cast<uint16_t>(PairOfBF16(v, 0.0f));
  else
    reinterpret_cast<float*>(flat.data)[i] = v;
}

}  // namespace millrace::cuda
