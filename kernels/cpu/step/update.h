// kernels/ops/step_ops.h: BeginStepOp and AdamWOp, on the CPU.
#pragma once

#include "kernels/ops/step_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void BeginStep(const BeginStepOp<TensorView>& op, Stream& stream);
void AdamW(const AdamWOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
