// kernels/ops/moe_ops.h: ExpertSlotsOp, DispatchOp and CombineOp, on CUDA.
#pragma once

#include "kernels/ops/moe_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaExpertSlots(const ExpertSlotsOp<TensorView>& op, Stream& stream);
void CudaDispatch(const DispatchOp<TensorView>& op, Stream& stream);
void CudaCombine(const CombineOp<TensorView>& op, Stream& stream);

}  // namespace millrace
