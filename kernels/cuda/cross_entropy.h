// Cross entropy of the CUDA kernel table: one block per row of logits, which it reads once and, with
// gradient, writes once; what does not fit into its shared memory is read twice.
//
// loss_sum  Row losses are added in an order that depends on their number alone, not strictly one by one.
#pragma once

#include "kernels/ops/model_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaCrossEntropy(const CrossEntropyOp<TensorView>& op, Stream& stream);

}  // namespace millrace
