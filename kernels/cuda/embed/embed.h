// Embedding lookups of the CUDA kernel table. A token outside the table is read as it comes: ids
// are checked when data is loaded.
#pragma once

#include "kernels/ops/model_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaEmbed(const EmbedOp<TensorView>& op, Stream& stream);
void CudaTakeInput(const TakeInputOp<TensorView>& op, Stream& stream);
void CudaSelectRow(const SelectRowOp<TensorView>& op, Stream& stream);

}  // namespace millrace
