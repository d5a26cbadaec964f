// What `millrace doctor` finds out about CUDA. cuda_report.cc does where it is built in; a build
// without it links no_cuda_report.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/api/cuda_libraries.h"

namespace millrace {

struct GpuReport {
  int ordinal = 0;
  std::string name, pci, compute_capability;
  int64_t memory_bytes = 0;
  int multiprocessors = 0;
  std::string trouble;  // of what was tried on it; "" all of it was right
};

enum class GpuLink { kSelf, kNone, kPcie, kNvlink };

struct CudaReport {
  bool built_in = false;
  std::string driver;  // CUDA version that the driver supports; "" no driver
  std::vector<LibraryReport> libraries;
  std::vector<GpuReport> gpus;
  std::vector<std::vector<GpuLink>> links;  // [from][to]
  std::string trouble;                      // why no GPU can be used; "" one can
};

// Tries each GPU: makes a context on it, runs a kernel, opens the libraries, checks products of
// known result. Seconds. Does not throw for what is wrong with the machine.
CudaReport InspectCuda();

}  // namespace millrace
