// Element-by-element ops of the CUDA kernel table.
#pragma once

#include "kernels/ops/model_ops.h"
#include "kernels/ops/step_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaAdd(const AddOp<TensorView>& op, Stream& stream);
void CudaAddBias(const AddBiasOp<TensorView>& op, Stream& stream);
void CudaCopyRows(const CopyRowsOp<TensorView>& op, Stream& stream);
void CudaJoinColumns(const JoinColumnsOp<TensorView>& op, Stream& stream);
// Cast, Concat, Accumulate: equal dtypes copy bits; into bf16 and f16 a NaN becomes
// 0x7fff.
void CudaCast(const CastOp<TensorView>& op, Stream& stream);
void CudaConcat(const ConcatOp<TensorView>& op, Stream& stream);
void CudaAccumulate(const AccumulateOp<TensorView>& op, Stream& stream);
// The ranges travel as arguments of the kernel, kRangesPerLaunch (ranges.h) at a time.
void CudaZeroRanges(const ZeroRangesOp<TensorView>& op, Stream& stream);

}  // namespace millrace
