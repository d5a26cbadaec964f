// Contracts: kernels/ops/fp8_ops.h.
#pragma once

#include "kernels/ops/fp8_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void Quantize(const QuantizeOp<TensorView>& op, Stream& stream);
void Turn(const TurnOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
