// What the host gives for a step, as kernels see it: [B,T] of i32 or f32, strided, in one of two
// halves that StepScalars names.
#pragma once

#include <cstdint>
#include <type_traits>

#include "runtime/base/error.h"
#include "runtime/base/step_scalars.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

template <class T>
class HostRows {
 public:
  // `view` addresses parity 0.
  HostRows(const TensorView& view, const TensorView& scalars, int64_t parity_stride)
      : data_(view.as<T>() + scalars.as<StepScalars>()->token_parity * parity_stride),
        layout_(view.layout) {
    constexpr DType kDType = std::is_same_v<T, float> ? DType::kF32 : DType::kI32;
    MR_CHECK(view.dtype() == kDType && layout_.rank == 2, "an input is {}; {}[B, T] is expected",
             ToString(layout_), Name(kDType));
  }

  int64_t batch() const { return layout_.dims[0]; }
  int64_t length() const { return layout_.dims[1]; }
  int64_t rows() const { return batch() * length(); }
  T at(int64_t b, int64_t t) const {
    return data_[b * layout_.strides[0] + t * layout_.strides[1]];
  }
  // Row r = b*T + t.
  T at(int64_t r) const { return at(r / length(), r % length()); }

 private:
  const T* data_;
  Layout layout_;
};
using Tokens = HostRows<int32_t>;

}  // namespace millrace::cpu
