// kernels/ops/expert_exchange_ops.h on the CPU.
#pragma once

#include "kernels/ops/expert_exchange_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void ExpertPieces(const ExpertPiecesOp<TensorView>& op, Stream& stream);
void ReceivedSlots(const ReceivedSlotsOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
