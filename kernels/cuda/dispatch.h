// From the dtypes that an op has to the kernel that is compiled for them (rows.h).
#pragma once

#include "kernels/cuda/rows.h"

namespace millrace::cuda {

// f.operator()<E>() with E = elements.
template <class F>
decltype(auto) WithElements(Elements elements, F&& f) {
  switch (elements) {
    case Elements::kF32:
      return f.template operator()<Elements::kF32>();
    case Elements::kBF16:
      return f.template operator()<Elements::kBF16>();
    case Elements::kAny:
      return f.template operator()<Elements::kAny>();
    case Elements::kF16:
      return f.template operator()<Elements::kF16>();
    case Elements::kAnyF16:
      break;
  }
  return f.template operator()<Elements::kAnyF16>();
}

// The same with the dtype of one view.
template <class F>
decltype(auto) WithElementsOf(const Rows& rows, F&& f) {
  if (rows.bf16) return f.template operator()<Elements::kBF16>();
  if (rows.f16) return f.template operator()<Elements::kF16>();
  return f.template operator()<Elements::kF32>();
}

// The same with the mix that has elements.
template <class F>
decltype(auto) WithMixOf(Elements elements, F&& f) {
  if (MixOf(elements) == Elements::kAnyF16) return f.template operator()<Elements::kAnyF16>();
  return f.template operator()<Elements::kAny>();
}

}  // namespace millrace::cuda
