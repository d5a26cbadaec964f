// A build without CUDA.
#include "runtime/api/backend.h"
#include "runtime/api/cuda_libraries.h"
#include "runtime/base/error.h"

namespace millrace {

bool CudaBuiltIn() { return false; }
int VisibleGpus() { return 0; }
std::vector<LibraryReport> LoadedCudaLibraries() { return {}; }
std::string CudaOfDriver() { return ""; }

RankDevice MakeCudaRankDevice(CommFactory&, Log&, const Config&, const Mesh&) {
  MR_FAIL("this build has no CUDA");
}

}  // namespace millrace
