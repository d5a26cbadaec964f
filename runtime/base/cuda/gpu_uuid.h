// A GPU's name for other programs and libraries: its number among those that this process sees is
// another one's elsewhere.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace millrace {

// "GPU-5d3e9a1c-0b2f-4c6d-8e7f-001122334455", as nvidia-smi and NVML write it.
std::string GpuUuid(const cudaDeviceProp& properties);

}  // namespace millrace
