// The operand `magnitude` of an op (kernels/ops/model_ops.h) as kernels take it (magnitude.cuh).
#pragma once

#include <cstdint>

#include "kernels/cuda/views.h"
#include "runtime/base/error.h"

namespace millrace::cuda {

// The bits of its number, which are ordered as numbers are; nullptr when absent.
inline uint32_t* MagnitudeOf(const TensorView& view) {
  return reinterpret_cast<uint32_t*>(FloatsOf(view, 1, "magnitude"));
}
// Of an op whose operands are `elements`: FP8 goes with f32 and bf16.
inline uint32_t* MagnitudeOf(const TensorView& view, Elements elements) {
  MR_CHECK(!view || MixOf(elements) == Elements::kAny,
           "a magnitude of f16; of f32 or bf16 it is allowed");
  return MagnitudeOf(view);
}

}  // namespace millrace::cuda
