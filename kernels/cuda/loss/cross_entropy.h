// Cross entropy of the CUDA kernel table: each block takes a few rows of logits, one after another.
// A row is read once and, with gradient, written once; what does not fit into shared memory is read
// twice. While a row's gradient is written, the block's next row is on its way. The last block to
// finish, known by a ticket (tickets.h), adds up the losses.
//
// Order     Who adds what within a row follows from its number of columns alone. Row losses are
//           added in an order that depends on their number alone, not strictly one by one.
#pragma once

#include "kernels/ops/loss_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaCrossEntropy(const CrossEntropyOp<TensorView>& op, Stream& stream);

}  // namespace millrace
