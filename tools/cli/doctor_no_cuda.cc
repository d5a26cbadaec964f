#include "tools/cli/doctor.h"

namespace millrace {

std::vector<LibraryReport> LoadedCudaLibraries() { return {}; }
std::string CudaOfDriver() { return ""; }

CudaReport InspectCuda() {
  CudaReport report;
  report.trouble = "this program was built without CUDA";
  return report;
}

}  // namespace millrace
