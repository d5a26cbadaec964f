// Gradient of an embedding on the CUDA kernel table: rows are sorted by token,
// then summed without atomics.
//
// Order  A token's rows are added in the order of b*T + t, in stretches that end where a tile of
//        sorted rows ends (of 16 or 64, by the number of rows), and the stretches in order: fixed
//        by the tokens. Positions: in the order of b.
#pragma once

#include "kernels/ops/model_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaEmbedGrad(const EmbedGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace
