// A build without CUDA.
#include "runtime/base/error.h"
#include "tools/cli/backend.h"

namespace millrace {

bool CudaBuiltIn() { return false; }
int VisibleGpus() { return 0; }

RankDevice MakeCudaRankDevice(CommFactory&, Log&, const Config&, const Mesh&) {
  MR_FAIL("this build has no CUDA");
}

}  // namespace millrace
