// kernels/ops/muon_ops.h on CUDA. The order of operations is the CPU's, every one rounded on its
// own: given the same operands, the same bits. But for the squares of a matrix, whose sums in f64
// are in an order of their own, which depends on its size alone.
#pragma once

#include "kernels/ops/muon_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaMuonMomentum(const MuonMomentumOp<TensorView>& op, Stream& stream);
void CudaMuonNormalise(const MuonNormaliseOp<TensorView>& op, Stream& stream);
void CudaMuonUpdate(const MuonUpdateOp<TensorView>& op, Stream& stream);

}  // namespace millrace
