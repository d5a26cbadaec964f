// What a step measures, on the CUDA kernel table.
//
// SumSquares  In double, in an order that depends on n alone.
// FiniteScan  Blocks that found something add their count with an atomic: sums of integers in double are
//             exact, so their order is no matter.
#pragma once

#include "kernels/ops/step_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaFiniteScan(const FiniteScanOp<TensorView>& op, Stream& stream);
void CudaSumSquares(const SumSquaresOp<TensorView>& op, Stream& stream);
void CudaStepStats(const StepStatsOp<TensorView>& op, Stream& stream);

}  // namespace millrace
