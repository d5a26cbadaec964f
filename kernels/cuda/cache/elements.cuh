// Elements of f32 or bf16 one by one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/pack.cuh"

namespace millrace::cuda {

// f32 as float, bf16 as its bits.
__device__ __forceinline__ float Load(const float* p, int64_t i) { return p[i]; }
__device__ __forceinline__ float Load(const uint16_t* p, int64_t i) {
  return __uint_as_float(static_cast<uint32_t>(p[i]) << 16);
}
__device__ __forceinline__ void Put(float* p, int64_t i, float v) { p[i] = v; }
__device__ __forceinline__ void Put(uint16_t* p, int64_t i, float v) {
  p[i] = static_cast<uint16_t>(PairOfBF16(v, 0.0f));
}
__device__ __forceinline__ float LoadAny(const std::byte* p, int64_t i, bool bf16) {
  return bf16 ? Load(reinterpret_cast<const uint16_t*>(p), i)
              : Load(reinterpret_cast<const float*>(p), i);
}

}  // namespace millrace::cuda
