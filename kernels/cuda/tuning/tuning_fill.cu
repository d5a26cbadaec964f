#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/cuda/tuning/tuning_fill.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/cuda_check.h"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256;

// The finaliser of splitmix64.
__device__ uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

__global__ void FillUniform(std::byte* data, DType dtype, int64_t n, uint64_t seed) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    const uint64_t bits = Mix(seed + static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15u);
    const float value = (static_cast<float>(bits >> 41) + 0.5f) * 0x1p-22f - 1.0f;
    if (dtype == DType::kF32)
      reinterpret_cast<float*>(data)[i] = value;
    else if (dtype == DType::kE4M3 || dtype == DType::kE5M2)
      reinterpret_cast<uint8_t*>(data)[i] = __nv_cvt_float_to_fp8(
          value, __NV_SATFINITE, dtype == DType::kE5M2 ? __NV_E5M2 : __NV_E4M3);
    else if (dtype == DType::kF16)
      reinterpret_cast<__half*>(data)[i] = __float2half_rn(value);
    else
      reinterpret_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
  }
}

}  // namespace

void LaunchFillUniform(std::byte* data, DType dtype, int64_t n, uint64_t seed,
                       cudaStream_t stream) {
  if (n == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(CeilDiv(n, kThreads), 8192));
  FillUniform<<<blocks, kThreads, 0, stream>>>(data, dtype, n, seed);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace::cuda
