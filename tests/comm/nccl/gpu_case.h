// Test cases on GPUs: RunOnGpus with Catch2.
#pragma once

#include <functional>

#include "tests/comm/nccl/gpu_ranks.h"

namespace millrace::testing {

// Calls fn on every rank and checks that no report holds a failure.
void OnGpuRanks(const NcclOptions& options, const std::function<void(GpuRank& rank)>& fn);

// Whether the world has a second rank. When it has not, the running test case counts as skipped.
bool HavePeers();

// main() of a test program.
int GpuTestMain(int argc, char** argv);

}  // namespace millrace::testing
