// The logistic function on the device.
#pragma once

namespace millrace::cuda {

// Within one unit in the last place, subnormals included; an IEEE division
// costs four times as much.
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / (1 + e^-x).
__device__ __forceinline__ float Sigmoid(float x) { return Reciprocal(__fadd_rn(1.0f, expf(-x))); }

}  // namespace millrace::cuda
