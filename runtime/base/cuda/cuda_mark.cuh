// What one thread of a kernel does to write marks.
#pragma once

#include "runtime/base/cuda/cuda_mark.h"

namespace millrace::cuda {

__device__ inline void Write(const MarkList& marks) {
  const int last = marks.count - 1;
  for (int i = 0; i < last; ++i) *static_cast<volatile uint64_t*>(marks.words[i]) = marks.values[i];
  if (last > 0) __threadfence_system();
  *static_cast<volatile uint64_t*>(marks.words[last]) = marks.values[last];
}

}  // namespace millrace::cuda
