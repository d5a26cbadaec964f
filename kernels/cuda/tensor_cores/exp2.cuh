// 2^x by the special function unit: within two units in the last place; results below 2^-126 are 0.
#pragma once

namespace millrace::cuda {

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace millrace::cuda
