// kernels/ops/loss_ops.h: CrossEntropyOp, on the CPU.
#pragma once

#include "kernels/ops/loss_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void CrossEntropy(const CrossEntropyOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
