// FP8 operands of a product as f32: kernels/ops/fp8_ops.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/ops/fp8_ops.h"
#include "runtime/base/float8.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

class Float8Values {
 public:
  // Without scales: payloads.
  Float8Values(const TensorView& payload, const TensorView* scales)
      : values_(ValuesOf(payload.dtype())), scales_(scales) {
    if (scales == nullptr) return;
    for (int d = 0; d < 2; ++d) block_[d] = ScaleBlockOf(payload.dim(d), scales->dim(d));
  }

  // out[i] = the i-th of n elements from `at` (row, column) on along dim `along`, which lie one
  // behind the other from `in` on.
  void Line(const uint8_t* in, std::array<int64_t, 2> at, int along, int64_t n, float* out) const {
    for (int64_t i = 0; i < n; ++i) out[i] = values_[in[i]];
    if (scales_ == nullptr) return;
    const int across = 1 - along;
    const float* const scale =
        scales_->as<float>() + at[across] / block_[across] * scales_->stride(across);
    for (int64_t i = 0; i < n;) {
      const int64_t block = (at[along] + i) / block_[along],
                    end = std::min(n, (block + 1) * block_[along] - at[along]);
      const float by = scale[block * scales_->stride(along)];
      for (; i < end; ++i) out[i] *= by;
    }
  }

 private:
  const std::array<float, 256>& values_;
  const TensorView* scales_;
  std::array<int64_t, 2> block_{1, 1};
};

}  // namespace millrace::cpu
