// Test cases on GPUs: RunOnGpus with Catch2.
#pragma once

#include <functional>

#include "tests/comm/nccl/gpu_ranks.h"

namespace millrace::testing {

// Calls fn on every rank and checks that no report holds a failure.
void OnGpuRanks(const NcclOptions& options, const std::function<void(GpuRank& rank)>& fn);

// main() of a test program.
int GpuTestMain(int argc, char** argv);

}  // namespace millrace::testing
