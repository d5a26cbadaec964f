// There is no FP8 on CUDA yet: WhyUnsupported (kernels/ops/cost.h) refuses quantize there, and no
// plan for it has the op.
#pragma once

#include "kernels/ops/fp8_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaQuantize(const QuantizeOp<TensorView>& op, Stream& stream);  // Error(kInternal)

}  // namespace millrace
