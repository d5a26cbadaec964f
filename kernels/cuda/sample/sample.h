// SampleOp on the CUDA kernel table: one launch, a cluster of blocks for each row. Tokens are the
// CPU's, bit for bit; sums of e^l are in f32 by thread, then in double by threads in order, which
// depends on how many blocks a row has, and so on how many rows there are.
#pragma once

#include "kernels/ops/sample_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaSample(const SampleOp<TensorView>& op, Stream& stream);

}  // namespace millrace
