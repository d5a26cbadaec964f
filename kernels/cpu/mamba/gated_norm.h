// kernels/ops/mamba_ops.h: GatedNormOp and GatedNormGradOp, on the CPU.
#pragma once

#include "kernels/ops/mamba_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void GatedNorm(const GatedNormOp<TensorView>& op, Stream& stream);
void GatedNormGrad(const GatedNormGradOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
