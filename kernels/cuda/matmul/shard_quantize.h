// A flat parameter that is gathered in FP8 on CUDA, the CPU's bit for bit but NaNs':
// kernels/ops/fp8_flat_ops.h.
#pragma once

#include "kernels/ops/fp8_flat_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

// A launch for each matrix that the shard has a part of.
void CudaShardMagnitudes(const ShardMagnitudesOp<TensorView>& op, Stream& stream);
void CudaShardQuantize(const ShardQuantizeOp<TensorView>& op, Stream& stream);
void CudaFlatScales(const FlatScalesOp<TensorView>& op, Stream& stream);
void CudaTurn(const TurnOp<TensorView>& op, Stream& stream);

}  // namespace millrace
