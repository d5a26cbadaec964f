// kernels/ops/muon_ops.h on the CPU.
#pragma once

#include "kernels/ops/muon_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void MuonMomentum(const MuonMomentumOp<TensorView>& op, Stream& stream);
void MuonNormalise(const MuonNormaliseOp<TensorView>& op, Stream& stream);
void MuonUpdate(const MuonUpdateOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
