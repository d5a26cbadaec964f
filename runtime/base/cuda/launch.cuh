// How own kernels are launched, and how they begin: launch.h.
#pragma once

#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

// The first statement of a kernel, in every thread; ahead of it only constants may be read, and a
// block's own shared memory be written. Waits for the kernel before; no time if that is complete.
__device__ __forceinline__ void BeginKernel() {
  asm volatile("griddepcontrol.wait;" : : : "memory");
}

// Behind BeginKernel, in a thread of every block at least: the kernel behind, launched with `end`,
// may begin, and by then what BeginKernel waited for is complete.
__device__ __forceinline__ void LetNextBegin() {
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
}

// kernel<<<grid, threads, shared_bytes, launch.stream>>>(arguments...). Error(kDevice): a bad
// configuration, or an earlier asynchronous fault.
template <class... Parameters, class... Arguments>
void LaunchKernel(const Launch& launch, dim3 grid, dim3 threads, size_t shared_bytes,
                  void (*kernel)(Parameters...), const Arguments&... arguments) {
  LetBeginEarly(launch);
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (AsksForSplit(launch, grid)) attributes[count++] = SharedMemorySplit();
  if (launch.cooperative) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, arguments...));
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace::cuda
