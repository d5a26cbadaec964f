// Chooses the GEMM algorithms of a run on GPUs: what its tuning file has, and what
// rank 0 measures for the rest.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "runtime/api/assemble.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/log.h"
#include "runtime/config/config.h"

namespace millrace {

// For Environment::tune. A collective; returns the hash of the algorithms that are now in force on
// all ranks, "" with execution.tune off. Rank 0 reads the file, measures the products of the
// training plan that it does not have, and writes it. A table for another GPU or library version
// cannot be used: it is put aside as <file>.old, which is said, and everything is measured.
// Without a training plan nothing is measured. Errors: kData, a file that is no tuning table; kIo.
std::string TuneRun(CudaDevice& device, const AssembledRun& run, const Config& config, Log& log,
                    Communicator& world);

}  // namespace millrace
