#include "runtime/base/cuda/gpu_wait.h"

#include "runtime/base/cuda/capture_gate.h"

namespace millrace {

cudaError_t WaitForGpu() noexcept {
  int ordinal = 0;
  cudaError_t status = cudaGetDevice(&ordinal);
  if (status != cudaSuccess) return status;
  CaptureGate::Of(ordinal).Alone([&] { status = cudaDeviceSynchronize(); });
  return status;
}

}  // namespace millrace
