// All that libmillrace_cuda.so exports.
#include "runtime/api/c/cuda_library.h"

extern "C" MR_API const millrace::RunFunctions* mr_cuda_table() {
  return &millrace::OwnFunctions();
}
