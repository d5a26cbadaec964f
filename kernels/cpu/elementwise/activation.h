// kernels/ops/model_ops.h: ActivationOp and ActivationGradOp, on the CPU.
#pragma once

#include "kernels/cpu/rows.h"
#include "kernels/ops/model_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

// y[0, n) = elements [c, c + n) of the activation of row x, which has `columns` of them; n is at
// most kChunk.
void ActivateRow(ActivationKind kind, Row x, int64_t columns, int64_t c, int64_t n, float* y);

void Activation(const ActivationOp<TensorView>& op, Stream& stream);
void ActivationGrad(const ActivationGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
