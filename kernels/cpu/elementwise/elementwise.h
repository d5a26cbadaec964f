// The ops of kernels/ops that map elements to elements, and ColumnSumOp, on the CPU.
#pragma once

#include "kernels/ops/model_ops.h"
#include "kernels/ops/step_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void Add(const AddOp<TensorView>& op, Stream& stream);
void AddBias(const AddBiasOp<TensorView>& op, Stream& stream);
void CopyRows(const CopyRowsOp<TensorView>& op, Stream& stream);
void JoinColumns(const JoinColumnsOp<TensorView>& op, Stream& stream);
void Cast(const CastOp<TensorView>& op, Stream& stream);
void Concat(const ConcatOp<TensorView>& op, Stream& stream);
void Accumulate(const AccumulateOp<TensorView>& op, Stream& stream);
void ZeroRanges(const ZeroRangesOp<TensorView>& op, Stream& stream);
void ColumnSum(const ColumnSumOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
