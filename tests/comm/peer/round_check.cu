#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "runtime/base/cuda/cuda_check.h"
#include "tests/comm/peer/round_check.h"

namespace millrace::testing {
namespace {

__device__ void Occupy(uint64_t nanoseconds) {
  uint64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    __nanosleep(200);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

__global__ void PauseKernel(int us) { Occupy(1000ull * static_cast<uint64_t>(us)); }

__global__ void DelayKernel(int rank, const int64_t* round, int salt, int most_us) {
  uint64_t mixed = static_cast<uint64_t>(*round) * 0x9e3779b97f4a7c15ull +
                   static_cast<uint64_t>(rank * 131 + salt);
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
  if ((mixed >> 60 & 1) != 0) return;
  Occupy((mixed >> 8) % (1000ull * static_cast<uint64_t>(most_us) + 1));
}

// Whole of tests/comm/rank_data.h, which device code cannot call.
__device__ int WholeOnDevice(int rank, int64_t index) {
  return static_cast<int>((7 * static_cast<int64_t>(rank) + 5 * index + index / 31) % 31) - 15;
}

template <class T>
__global__ void RoundCheckKernel(RoundResult result, const T* data, int64_t n, int rank, int world,
                                 const int64_t* round, unsigned long long* wrong) {
  const int64_t first = 13 * *round, stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t m = n / world;
  unsigned long long bad = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += stride) {
    int expected = 0;
    if (result == RoundResult::kSums)
      for (int r = 0; r < world; ++r) expected += WholeOnDevice(r, first + rank * n + i);
    else
      expected = WholeOnDevice(static_cast<int>(i / m), first + i % m);
    bad += static_cast<float>(data[i]) != static_cast<float>(expected);
  }
  if (bad != 0) atomicAdd(wrong, bad);
}

}  // namespace

void LaunchDelay(int rank, const int64_t* round, int salt, int most_us, cudaStream_t stream) {
  DelayKernel<<<1, 1, 0, stream>>>(rank, round, salt, most_us);
  MR_CUDA_LAUNCHED();
}

void LaunchPause(int us, cudaStream_t stream) {
  PauseKernel<<<1, 1, 0, stream>>>(us);
  MR_CUDA_LAUNCHED();
}

void LaunchRoundCheck(RoundResult result, DType dtype, const std::byte* data, int64_t n, int rank,
                      int world, const int64_t* round, unsigned long long* wrong,
                      cudaStream_t stream) {
  constexpr int kBlocks = 16, kThreads = 256;
  if (dtype == DType::kBF16)
    RoundCheckKernel<<<kBlocks, kThreads, 0, stream>>>(
        result, reinterpret_cast<const __nv_bfloat16*>(data), n, rank, world, round, wrong);
  else if (dtype == DType::kF16)
    RoundCheckKernel<<<kBlocks, kThreads, 0, stream>>>(
        result, reinterpret_cast<const __half*>(data), n, rank, world, round, wrong);
  else
    RoundCheckKernel<<<kBlocks, kThreads, 0, stream>>>(result, reinterpret_cast<const float*>(data),
                                                       n, rank, world, round, wrong);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace::testing
