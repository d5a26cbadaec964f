// No test: a program with one fault of each kind that compute-sanitizer looks for, in kernels of
// our own namespace. tools/bench/sanitize_gpu.sh runs it first: a tool that finds nothing here, or
// a report that is not told to be ours, makes all its later "nothing found" worthless.
//
//   planted_faults memcheck|racecheck|initcheck|synccheck
//
// Ends with 0 also where the fault ends the context: the tool's report is what counts.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <string>

namespace millrace::testing {
namespace {

constexpr int kThreads = 64;

// memcheck: the last thread writes behind the buffer.
__global__ void WriteBehind(int* data, int n) {
  const int i = static_cast<int>(threadIdx.x);
  data[i == kThreads - 1 ? n + 1024 : i] = i;
}

// racecheck: reads what another warp writes, without a barrier in between.
__global__ void ReadTooEarly(int* out) {
  __shared__ volatile int shared[kThreads];
  const int i = static_cast<int>(threadIdx.x);
  shared[i] = i;
  out[i] = shared[kThreads - 1 - i];
}

// initcheck: adds what nobody has written.
__global__ void ReadUnwritten(const int* in, int* out) { out[threadIdx.x] = in[threadIdx.x] + 1; }

// synccheck: a warp and a half come to a barrier of the whole block, the rest ends without it.
__global__ void BarrierOfSome(int* out) {
  if (threadIdx.x < kThreads - 16) __syncthreads();
  out[threadIdx.x] = 1;
}

int Plant(const std::string& tool) {
  int *data = nullptr, *other = nullptr;
  if (cudaMalloc(&data, kThreads * sizeof(int)) != cudaSuccess) return 1;
  if (cudaMalloc(&other, kThreads * sizeof(int)) != cudaSuccess) return 1;
  if (tool == "memcheck")
    WriteBehind<<<1, kThreads>>>(data, kThreads);
  else if (tool == "racecheck")
    ReadTooEarly<<<1, kThreads>>>(data);
  else if (tool == "initcheck")
    ReadUnwritten<<<1, kThreads>>>(data, other);
  else if (tool == "synccheck")
    BarrierOfSome<<<1, kThreads>>>(data);
  else
    return 2;
  std::printf("%s: %s\n", tool.c_str(), cudaGetErrorString(cudaDeviceSynchronize()));
  return 0;
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) { return argc == 2 ? millrace::testing::Plant(argv[1]) : 2; }
