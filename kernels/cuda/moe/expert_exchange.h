// kernels/ops/expert_exchange_ops.h on CUDA.
#pragma once

#include "kernels/ops/expert_exchange_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaExpertPieces(const ExpertPiecesOp<TensorView>& op, Stream& stream);
void CudaReceivedSlots(const ReceivedSlotsOp<TensorView>& op, Stream& stream);

}  // namespace millrace
