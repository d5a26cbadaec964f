// kernels/ops/attention_ops.h: RopeTableOp and RopeOp, cache_ops.h: RopeRowsOp, on the CPU.
#pragma once

#include "kernels/ops/attention_ops.h"
#include "kernels/ops/cache_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void RopeTable(const RopeTableOp<TensorView>& op, Stream& stream);
void Rope(const RopeOp<TensorView>& op, Stream& stream);
void RopeRows(const RopeRowsOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
