#include "runtime/base/cuda/cuda_check.h"
#include "tests/build/squares.h"

namespace millrace {
namespace {

__global__ void Squares(int32_t* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef __CUDA_ARCH__
  if (i < count) out[i] = i * i + __CUDA_ARCH__ / 10;
#endif
}

}  // namespace

void LaunchSquares(int32_t* out, int count) {
  constexpr int kThreads = 256;
  Squares<<<(count + kThreads - 1) / kThreads, kThreads>>>(out, count);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace
