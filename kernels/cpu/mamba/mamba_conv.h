// kernels/ops/mamba_ops.h: MambaConvOp and MambaConvGradOp, on the CPU.
#pragma once

#include "kernels/ops/mamba_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void MambaConv(const MambaConvOp<TensorView>& op, Stream& stream);
void MambaConvGrad(const MambaConvGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
