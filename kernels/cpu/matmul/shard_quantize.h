// Contracts: kernels/ops/fp8_flat_ops.h.
#pragma once

#include "kernels/ops/fp8_flat_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void ShardMagnitudes(const ShardMagnitudesOp<TensorView>& op, Stream& stream);
void FlatScales(const FlatScalesOp<TensorView>& op, Stream& stream);
void ShardQuantize(const ShardQuantizeOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
