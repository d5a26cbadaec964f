// kernels/ops/step_ops.h: FiniteScanOp, SumSquaresOp and StepStatsOp, on the CPU.
#pragma once

#include "kernels/ops/step_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void FiniteScan(const FiniteScanOp<TensorView>& op, Stream& stream);
void SumSquares(const SumSquaresOp<TensorView>& op, Stream& stream);
void StepStats(const StepStatsOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
