// What this process runs on, as far as it can be asked: for a run's record and `millrace doctor`.
#pragma once

#include <string>

#include "runtime/base/host_name.h"  // HostName, of the same kind
#include "runtime/record/run_environment.h"

namespace millrace {

// Each is "" where it is not known.
std::string MpiLibrary();    // "Open MPI v4.1.4": the loaded one
std::string BlasLibrary();   // "OpenBLAS 0.3.21 ..."
std::string KernelDriver();  // NVIDIA's kernel module, in its own words
std::string CpuModel();
// This process's, as it was given: words that a shell would split are in quotes.
std::string CommandLine();

// This rank's host, program and system, with `device` (what the backend knows of its own) in
// between, and the rank's start: now.
RunEnvironment DescribeRank(const RunEnvironment& device);

}  // namespace millrace
