// kernels/ops/moe_ops.h: ExpertSlotsOp, DispatchOp and CombineOp, on the CPU.
#pragma once

#include "kernels/ops/moe_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void ExpertSlots(const ExpertSlotsOp<TensorView>& op, Stream& stream);
void Dispatch(const DispatchOp<TensorView>& op, Stream& stream);
void Combine(const CombineOp<TensorView>& op, Stream& stream);

// Dense i32 of `numel` elements.
void CheckInts(const TensorView& view, int64_t numel, const char* name);

// offsets[E] of i32 [E+1], checked against the slots that a buffer holds.
int64_t LiveSlots(const TensorView& offsets, int64_t slots, const char* op);

}  // namespace millrace::cpu
