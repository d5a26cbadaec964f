// The documents of a row of tokens (kernels/ops/model_ops.h).
#pragma once

#include <cstdint>

#include "runtime/base/error.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

class Documents {
 public:
  // `view`: i32 [batch, length], dense, or absent.
  Documents(const TensorView& view, int64_t batch, int64_t length)
      : first_(view ? view.as<int32_t>() : nullptr), length_(length) {
    if (!view) return;
    MR_CHECK(
        view.dtype() == DType::kI32 && view.layout == DenseLayout(DType::kI32, {batch, length}),
        "documents are {}; dense i32[{}, {}] is expected", ToString(view.layout), batch, length);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t t = 0; t < length; ++t)
        MR_CHECK(FirstOf(b, t) == t || (t > 0 && FirstOf(b, t) == FirstOf(b, t - 1)),
                 "documents: position {} of row {} is in the one that begins at {}", t, b,
                 FirstOf(b, t));
  }

  // Of the document of a position: its first.
  int64_t FirstOf(int64_t b, int64_t t) const {
    return first_ == nullptr ? 0 : first_[b * length_ + t];
  }
  // f(begin, end) for each document of a row, in order.
  template <class F>
  void ForEach(int64_t b, F&& f) const {
    for (int64_t begin = 0, end; begin < length_; begin = end) {
      end = begin + 1;
      while (end < length_ && FirstOf(b, end) == begin) ++end;
      f(begin, end);
    }
  }

 private:
  const int32_t* first_;
  int64_t length_;
};

// Rows [begin, end) of dim 1 of row b of dim 0, with dims 0 and 1 kept.
inline TensorView PartOf(TensorView view, int64_t b, int64_t begin, int64_t end) {
  if (!view) return view;
  view.data += (b * view.stride(0) + begin * view.stride(1)) * Bytes(view.dtype());
  view.layout.dims[0] = 1;
  view.layout.dims[1] = end - begin;
  return view;
}

}  // namespace millrace::cpu
