// The largest magnitudes that FP8's scales are made of: kernels/ops/model_ops.h and fp8_ops.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/rows.h"

namespace millrace::cpu {

// The greater of `most` and the largest finite magnitude of n values.
inline float LargestMagnitude(const float* x, int64_t n, float most) {
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(x[i]);
    const bool finite = magnitude <= std::numeric_limits<float>::max();
    most = finite && magnitude > most ? magnitude : most;
  }
  return most;
}

// What the operand `magnitude` of an op becomes by what the op has stored in x [R,C]; nothing where
// it is absent.
inline void RaiseMagnitude(const TensorView& magnitude, const TensorView& x) {
  if (!magnitude) return;
  MR_CHECK(magnitude.dtype() == DType::kF32 && magnitude.numel() == 1, "magnitude is {}",
           ToString(magnitude.layout));
  float& most = *magnitude.as<float>();
  for (int64_t r = 0; r < x.dim(0); ++r)
    ForChunks(x.dim(1), [&](int64_t c, int64_t n) {
      float buffer[kChunk];
      most = LargestMagnitude(Load(RowAt(x, r), c, n, buffer), n, most);
    });
}

}  // namespace millrace::cpu
