// Ranges as NVTX shows them, for Nsight Systems and others: in the domain "millrace". Needs no GPU.
//
// Source   https://nvidia.github.io/NVTX: a profiler is found at the first NVTX call of the
//          process, by NVTX_INJECTION64_PATH, which `nsys profile -t nvtx` sets; without one nobody
//          can listen later.
#pragma once

#include <memory>

#include "runtime/base/profiler_ranges.h"

namespace millrace {

// Null: no profiler listens.
std::unique_ptr<ProfilerRanges> MakeNvtxRanges();

}  // namespace millrace
