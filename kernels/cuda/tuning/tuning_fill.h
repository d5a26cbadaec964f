// Random operands for measurements.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/base/dtype.h"

namespace millrace::cuda {

// data[i], i < n, uniform in (-1, 1), from a counter-based hash of seed and i. f32, bf16, f16 or
// FP8.
void LaunchFillUniform(std::byte* data, DType dtype, int64_t n, uint64_t seed, cudaStream_t stream);

}  // namespace millrace::cuda
