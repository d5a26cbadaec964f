// Typed, strided, non-owning views. `Layout` is the device-free half that planning shares with
// execution; `TensorView` adds an address. A view never owns and never checks lifetime: the plan's
// checker proves that, before step 0.
//
// Units    dims and strides count elements of `dtype`; *_bytes counts bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "runtime/base/dtype.h"

namespace millrace {

inline constexpr int kMaxRank = 4;

// dims[i] >= 0 and strides[i] >= 0 for i < rank; the remaining entries are zero,
// so that == is member-wise.
struct Layout {
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> dims{};
  std::array<int64_t, kMaxRank> strides{};

  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i];
    return n;
  }
  // Bytes from the first element to one past the last that the view can touch.
  int64_t span_bytes() const {
    if (numel() == 0) return 0;
    int64_t last = 0;
    for (int i = 0; i < rank; ++i) last += (dims[i] - 1) * strides[i];
    return (last + 1) * Bytes(dtype);
  }
  bool contiguous() const {
    int64_t expected = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (dims[i] != 1 && strides[i] != expected) return false;
      expected *= dims[i];
    }
    return true;
  }
  bool operator==(const Layout&) const = default;
};

// Row-major layout of the given dims.
inline Layout DenseLayout(DType dtype, std::initializer_list<int64_t> dims) {
  Layout layout;
  layout.dtype = dtype;
  for (int64_t d : dims) layout.dims[layout.rank++] = d;
  int64_t stride = 1;
  for (int i = layout.rank - 1; i >= 0; --i) {
    layout.strides[i] = stride;
    stride *= layout.dims[i];
  }
  return layout;
}

struct TensorView {
  std::byte* data = nullptr;
  Layout layout;

  // True when the operand is present; optional operands of a kernel op are absent views.
  explicit operator bool() const { return data != nullptr; }
  int64_t dim(int i) const { return layout.dims[i]; }
  int64_t stride(int i) const { return layout.strides[i]; }
  int64_t numel() const { return layout.numel(); }
  int64_t bytes() const { return numel() * Bytes(layout.dtype); }
  DType dtype() const { return layout.dtype; }
  // Address as T*; the caller has checked the dtype (kernels dispatch on it once).
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

// "bf16[64, 128]" or, with strides that are not dense, "bf16[64, 128 : 384, 1]".
std::string ToString(const Layout& layout);

}  // namespace millrace
