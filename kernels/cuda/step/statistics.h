// What a step measures, on the CUDA kernel table.
//
// One launch each: the last block to finish, known by a ticket (tickets.h), completes the work.
//
// SumSquares  In double, in an order that depends on n alone.
// FiniteScan  Counts are integers: the order of blocks is no matter. With squares it is SumSquares'
//             launch, which counts where a sum is not finite.
#pragma once

#include "kernels/ops/step_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaFiniteScan(const FiniteScanOp<TensorView>& op, Stream& stream);
void CudaSumSquares(const SumSquaresOp<TensorView>& op, Stream& stream);
void CudaStepStats(const StepStatsOp<TensorView>& op, Stream& stream);

}  // namespace millrace
