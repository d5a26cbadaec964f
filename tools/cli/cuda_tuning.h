// cuBLASLt's algorithms on a GPU, for Environment::tuner.
#pragma once

#include "runtime/api/tuning.h"
#include "runtime/base/cuda/cuda_device.h"

namespace millrace {

// `device` outlives it.
Tuner MakeTuner(CudaDevice& device);

}  // namespace millrace
