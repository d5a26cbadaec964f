#include "kernels/ops/fp8_ops.h"

#include "runtime/base/error.h"

namespace millrace {

int64_t ScaleBlockOf(int64_t n, int64_t scales) {
  if (scales == 1) return n < 1 ? 1 : n;
  if (scales == n) return 1;
  MR_CHECK(HasScaleBlocks(n, scales), "scales along a dim of {}", n);
  return kScaleBlock;
}

}  // namespace millrace
