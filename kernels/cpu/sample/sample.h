// kernels/ops/sample_ops.h: SampleOp, on the CPU.
#pragma once

#include "kernels/ops/sample_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void Sample(const SampleOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
