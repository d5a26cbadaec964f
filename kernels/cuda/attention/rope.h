// Rotary position embedding of the CUDA kernel table.
#pragma once

#include "kernels/ops/attention_ops.h"
#include "kernels/ops/cache_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaRopeTable(const RopeTableOp<TensorView>& op, Stream& stream);
void CudaRope(const RopeOp<TensorView>& op, Stream& stream);
void CudaRopeRows(const RopeRowsOp<TensorView>& op, Stream& stream);

}  // namespace millrace
