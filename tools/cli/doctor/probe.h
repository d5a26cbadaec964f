// A kernel to try a GPU with: does this program hold code for it?
#pragma once

#include <cuda_runtime_api.h>

namespace millrace {

// out[i] = 3 * i + 1 for i in [0, 32); out in memory of the current device.
// Enqueued on the default stream.
cudaError_t LaunchProbe(int* out);

}  // namespace millrace
