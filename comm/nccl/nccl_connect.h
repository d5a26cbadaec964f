// The start-up exercise of a communicator (Communicator::Connect).
#pragma once

#include <string>

#include "comm/communicator.h"
#include "comm/nccl/nccl_options.h"
#include "runtime/base/cuda/cuda_device.h"

namespace millrace {

// Runs each kind of collective in `uses` with a few and with many elements and compares the results
// with whole numbers known beforehand. Memory is the exercise's own, a window of its own with
// options.symmetric. A collective. Error(kComm): a result is wrong, or (kTimeout) did not come.
void ExerciseCollectives(Communicator& comm, CudaDevice& device, const NcclOptions& options,
                         const CommUses& uses, const std::string& label);

}  // namespace millrace
