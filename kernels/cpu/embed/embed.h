// kernels/ops/model_ops.h: EmbedOp, EmbedGradOp and SelectRowOp, on the CPU.
#pragma once

#include "kernels/ops/cache_ops.h"
#include "kernels/ops/model_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void Embed(const EmbedOp<TensorView>& op, Stream& stream);
void EmbedRows(const EmbedRowsOp<TensorView>& op, Stream& stream);

// Tokens are sorted by value first (scratch), so that each row of the table is summed in f32 in one
// go and written once.
void EmbedGrad(const EmbedGradOp<TensorView>& op, Stream& stream);

void TakeInput(const TakeInputOp<TensorView>& op, Stream& stream);
void SelectRow(const SelectRowOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
