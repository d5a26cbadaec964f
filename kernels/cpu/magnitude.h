// The largest magnitudes that FP8's scales are made of: kernels/ops/model_ops.h and fp8_ops.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/rows.h"
#include "kernels/ops/fp8_ops.h"

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

// The scale of a block whose largest finite magnitude is `most`, in a format whose largest number
// is `largest`.
inline float ScaleFor(float most, float largest, ScaleRounding rounding) {
  if (most == 0) return 1;
  const float scale = std::max(most / largest, kLeastScale);
  if (rounding == ScaleRounding::kExact) return scale;
  int exponent = 0;
  const float fraction = std::frexp(scale, &exponent);  // in [1/2, 1)
  return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
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
