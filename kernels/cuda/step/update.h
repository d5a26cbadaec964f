// Learning rate and AdamW of the CUDA kernel table. The order of operations is the CPU's, every one
// rounded on its own: given the same scalars, the same bits.
#pragma once

#include "kernels/ops/step_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaBeginStep(const BeginStepOp<TensorView>& op, Stream& stream);
// The decay ranges travel as arguments of the kernel; a list that is too long makes several
// launches.
void CudaAdamW(const AdamWOp<TensorView>& op, Stream& stream);

}  // namespace millrace
