// Payloads and scales of FP8 on CUDA, the CPU's bit for bit: kernels/ops/fp8_ops.h.
#pragma once

#include "kernels/ops/fp8_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

// One launch; two where all elements share a scale that comes of no magnitude.
void CudaQuantize(const QuantizeOp<TensorView>& op, Stream& stream);

}  // namespace millrace
