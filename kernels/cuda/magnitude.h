// The operand `magnitude` of an op (kernels/ops/model_ops.h) as kernels take it (magnitude.cuh).
#pragma once

#include <cstdint>

#include "kernels/cuda/views.h"

namespace millrace::cuda {

// The bits of its number, which are ordered as numbers are; nullptr when absent.
inline uint32_t* MagnitudeOf(const TensorView& view) {
  return reinterpret_cast<uint32_t*>(FloatsOf(view, 1, "magnitude"));
}

}  // namespace millrace::cuda
