// Communicators over device memory behind the contract's host operands: each call copies its
// operands to the device, runs there, and copies all of them back.
#pragma once

#include <memory>

#include "tests/comm/nccl/gpu_ranks.h"

namespace millrace::testing {

// As rank.nccl, for operands in host memory of at most 4 MiB per call; streams
// given to calls are not used.
std::unique_ptr<CommFactory> MakeDeviceBackedFactory(GpuRank& rank);

}  // namespace millrace::testing
