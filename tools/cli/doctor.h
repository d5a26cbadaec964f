// What `millrace doctor` finds out about CUDA. doctor_cuda.cc does where it is built in; a build
// without it links doctor_no_cuda.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

// A library that this program was compiled against and runs with. Versions as its maker writes
// them; "" unknown.
struct LibraryReport {
  std::string name;
  std::string compiled, loaded;
  std::string file;     // which one the loader took; "" inside the program, or none
  std::string trouble;  // "" fine
};

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

// Of CUDA's libraries: versions and files, without opening any that is not loaded yet.
std::vector<LibraryReport> LoadedCudaLibraries();
// As CudaReport::driver.
std::string CudaOfDriver();

// Tries each GPU: makes a context on it, runs a kernel, opens the libraries, checks products of
// known result. Seconds. Does not throw for what
// is wrong with the machine.
CudaReport InspectCuda();

// File from which the loader took the code or data at `address`; "" when it is this program's own.
std::string LoadedFrom(const void* address);

}  // namespace millrace
