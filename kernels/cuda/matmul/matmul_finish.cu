#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/matmul/matmul_finish.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/views.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256;

template <Elements Mix>
__device__ float Load(const std::byte* data, DType dtype, int64_t i) {
  return dtype == DType::kF32 ? reinterpret_cast<const float*>(data)[i]
                              : LowOf<Mix>(reinterpret_cast<const uint16_t*>(data)[i]);
}

template <Elements Mix>
__device__ void Store(std::byte* data, DType dtype, int64_t i, float value) {
  if (dtype == DType::kF32)
    reinterpret_cast<float*>(data)[i] = value;
  else
    reinterpret_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(PairOf<Mix>(value, 0.0f));
}

template <Elements Mix>
__global__ void FinishKernel(const MatmulFinish f) {
  BeginKernel();
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < f.rows * f.cols;
       at += step) {
    const int64_t i = at / f.cols, j = at % f.cols;
    float value = f.product != nullptr ? f.product[at] : 0.0f;
    if (f.bias != nullptr) value += Load<Mix>(f.bias, f.bias_dtype, j * f.bias_stride);
    const int64_t where = i * f.row_stride + j * f.col_stride;
    if (f.accumulate) value += Load<Mix>(f.out, f.out_dtype, where);
    Store<Mix>(f.out, f.out_dtype, where, value);
  }
}

}  // namespace

void LaunchMatmulFinish(const MatmulFinish& finish, const Launch& launch) {
  const int64_t numel = finish.rows * finish.cols;
  if (numel == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(CeilDiv(numel, kThreads), 4096));
  const DType bias = finish.bias != nullptr ? finish.bias_dtype : DType::kF32;
  WithMixOf(MixOf({bias, finish.out_dtype}), [&]<Elements Mix>() {
    LaunchKernel(launch, blocks, kThreads, 0, FinishKernel<Mix>, finish);
  });
}

}  // namespace millrace::cuda
