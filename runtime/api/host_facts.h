// What this process runs on, as far as it can be asked: for a run's record and `millrace doctor`.
#pragma once

#include <string>

#include "runtime/base/host_name.h"  // HostName, of the same kind
#include "runtime/record/run_environment.h"

namespace millrace {

// Each is "" where it is not known.
std::string BlasLibrary();   // "OpenBLAS 0.3.21 ..."
std::string KernelDriver();  // NVIDIA's kernel module, in its own words
std::string CpuModel();
// File from which the loader took the code or data at `address`; "" when it is this program's own.
std::string LoadedFrom(const void* address);

// This rank's host, `command`, program and system, with `device` (what the backend and the
// transport know of their own) in between, and the rank's start: now.
RunEnvironment DescribeRank(const std::string& command, const RunEnvironment& device);

}  // namespace millrace
