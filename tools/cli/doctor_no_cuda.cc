#include "tools/cli/doctor.h"

namespace millrace {

CudaReport InspectCuda() {
  CudaReport report;
  report.trouble = "this program was built without CUDA";
  return report;
}

}  // namespace millrace
