// cuBLASLt's algorithms on a GPU, for Environment::tuner.
#pragma once

#include "runtime/base/cuda/cuda_device.h"
#include "runtime/run/tuning.h"

namespace millrace {

// `device` outlives it.
Tuner MakeTuner(CudaDevice& device);

}  // namespace millrace
