#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "runtime/base/cuda/cuda_check.h"
#include "tests/comm/nccl/round_fill.h"

namespace millrace::testing {
namespace {

// Whole of tests/comm/rank_data.h, which device code cannot call.
__device__ float WholeOnDevice(int rank, int64_t index) {
  return static_cast<float>(
      static_cast<int>((7 * static_cast<int64_t>(rank) + 5 * index + index / 31) % 31) - 15);
}

template <class T>
__global__ void RoundFillKernel(T* data, int64_t n, int rank, const int64_t* round) {
  const int64_t first = 13 * *round;
  // Block b of k takes the stretch from b/k squared to (b+1)/k squared.
  const double k = gridDim.x, b = blockIdx.x;
  const int64_t begin = static_cast<int64_t>(n * (b / k) * (b / k));
  const int64_t end =
      blockIdx.x + 1 == gridDim.x ? n : static_cast<int64_t>(n * ((b + 1) / k) * ((b + 1) / k));
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
    data[i] = static_cast<T>(WholeOnDevice(rank, first + i));
}

__global__ void NextRoundKernel(int64_t* round) { ++*round; }

constexpr int kBlocks = 16, kThreads = 256;

}  // namespace

void LaunchRoundFill(DType dtype, std::byte* data, int64_t n, int rank, const int64_t* round,
                     cudaStream_t stream) {
  if (dtype == DType::kBF16)
    RoundFillKernel<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<__nv_bfloat16*>(data), n,
                                                      rank, round);
  else if (dtype == DType::kF16)
    RoundFillKernel<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<__half*>(data), n, rank,
                                                      round);
  else
    RoundFillKernel<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<float*>(data), n, rank,
                                                      round);
  MR_CUDA_LAUNCHED();
}

void LaunchNextRound(int64_t* round, cudaStream_t stream) {
  NextRoundKernel<<<1, 1, 0, stream>>>(round);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace::testing
