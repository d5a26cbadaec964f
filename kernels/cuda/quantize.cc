#include "kernels/cuda/quantize.h"

#include "kernels/ops/cost.h"
#include "runtime/base/error.h"

namespace millrace {

void CudaQuantize(const QuantizeOp<TensorView>& op, Stream&) {
  MR_FAIL("quantize to {}: {}", Name(op.out.dtype()),
          WhyUnsupported(LinearEncoding::kFp8Block, Backend::kCuda));
}

}  // namespace millrace
