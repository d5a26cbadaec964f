// An empty kernel that separates a collective from the kernel before it on its stream.
//
// NCCL 2.28.0 to 2.30.6 launch the kernels of symmetric windows with programmatic stream
// serialisation, but the kernels do not wait for it (NCCL commit 2948185 "Reintroduce
// cudaGridDependencySynchronize in built-in symmetric kernels", in 2.30.7): they may read operands
// that the kernel before them is still flushing. With the empty kernel between, which itself starts
// only when all before it is complete, they overtake nothing.
#pragma once

#include <cuda_runtime_api.h>

namespace millrace {

// Enqueues it. Capturable.
void LaunchFence(cudaStream_t stream);

}  // namespace millrace
