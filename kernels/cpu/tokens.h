// The token buffer as kernels see it: [B,T] of i32, strided, in one of two
// halves that StepScalars names.
#pragma once

#include <cstdint>

#include "runtime/base/error.h"
#include "runtime/base/step_scalars.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

class Tokens {
 public:
  // `view` addresses parity 0.
  Tokens(const TensorView& view, const TensorView& scalars, int64_t parity_stride)
      : data_(view.as<int32_t>() + scalars.as<StepScalars>()->token_parity * parity_stride),
        layout_(view.layout) {
    MR_CHECK(view.dtype() == DType::kI32 && layout_.rank == 2,
             "tokens are {}; i32[B, T] is expected", ToString(layout_));
  }

  int64_t batch() const { return layout_.dims[0]; }
  int64_t length() const { return layout_.dims[1]; }
  int64_t rows() const { return batch() * length(); }
  int32_t at(int64_t b, int64_t t) const {
    return data_[b * layout_.strides[0] + t * layout_.strides[1]];
  }
  // Row r = b*T + t.
  int32_t at(int64_t r) const { return at(r / length(), r % length()); }

 private:
  const int32_t* data_;
  Layout layout_;
};

}  // namespace millrace::cpu
