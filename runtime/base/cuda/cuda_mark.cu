#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/cuda_mark.h"

namespace millrace::cuda {
namespace {

__global__ void WriteMarks(const MarkList marks) {
  const int last = marks.count - 1;
  for (int i = 0; i < last; ++i) *static_cast<volatile uint64_t*>(marks.words[i]) = marks.values[i];
  if (last > 0) __threadfence_system();
  *static_cast<volatile uint64_t*>(marks.words[last]) = marks.values[last];
}

}  // namespace

void LaunchMarks(const MarkList& marks, cudaStream_t stream) {
  WriteMarks<<<1, 1, 0, stream>>>(marks);
  MR_CUDA_LAUNCHED();
}

}  // namespace millrace::cuda
