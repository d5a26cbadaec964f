// kernels/ops/model_ops.h: RopeTableOp and RopeOp, on the CPU.
#pragma once

#include "kernels/ops/model_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void RopeTable(const RopeTableOp<TensorView>& op, Stream& stream);
void Rope(const RopeOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
