// Communicators over device memory behind the contract's host operands: each call copies its
// operands to the device, runs there, and copies all of them back.
#pragma once

#include <memory>

#include "tests/comm/nccl/gpu_ranks.h"

namespace millrace::testing {

// As rank.nccl, for operands in host memory of at most 4 MiB per call; streams
// given to calls are not used. What begins between multiples of 4 bytes lies outside windows.
std::unique_ptr<CommFactory> MakeDeviceBackedFactory(GpuRank& rank);

// The same around `inner`, whose operands lie in registered memory wherever they begin.
std::unique_ptr<Communicator> MakeDeviceBacked(GpuRank& rank, std::unique_ptr<Communicator> inner);

}  // namespace millrace::testing
