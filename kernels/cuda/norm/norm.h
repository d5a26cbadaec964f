// Norms of the CUDA kernel table. A row is held in registers: each operand passes through memory
// once. Columns: at most kMaxNormColumns (norm_launch.h).
#pragma once

#include "kernels/ops/model_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaNorm(const NormOp<TensorView>& op, Stream& stream);
// Statistics and the sums of a row are formed in double, as on the CPU; where all is bf16, or all
// f16, from the f32 sums of packs of eight elements, so that a bf16 value beyond 1e19 makes the
// variance infinite. Sums over rows: each of at most kNormGradBlocks blocks adds up the rows that
// it takes. Their number depends on the shape alone, so every GPU gives the same bits.
void CudaNormGrad(const NormGradOp<TensorView>& op, Stream& stream);
// Blocks are added in an order that depends on their number alone.
void CudaNormSums(const NormSumsOp<TensorView>& op, Stream& stream);

}  // namespace millrace
