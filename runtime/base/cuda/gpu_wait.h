// Waits for all that a GPU has been given.
#pragma once

#include <cuda_runtime_api.h>

namespace millrace {

// cudaDeviceSynchronize of the thread's current GPU, while none of its streams is captured
// (capture_gate.h). Not from within a capture.
cudaError_t WaitForGpu() noexcept;

}  // namespace millrace
