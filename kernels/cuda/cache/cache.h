// kernels/ops/cache_ops.h, of the CUDA kernel table: states that are cleared, rows that are placed
// and cached, and attention over what is cached.
#pragma once

#include "kernels/ops/cache_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

void CudaClearCache(const ClearCacheOp<TensorView>& op, Stream& stream);
void CudaKeepRange(const KeepRangeOp<TensorView>& op, Stream& stream);
void CudaEmbedRows(const EmbedRowsOp<TensorView>& op, Stream& stream);
// Of one row, before the kernel ahead has ended (launch.h), it reads at, slots and pages, which no
// op of a step writes, and what earlier steps have put into the cache, which no other op of a step
// writes: the checker holds every plan to that (schedule/constants.h).
void CudaCachedAttention(const CachedAttentionOp<TensorView>& op, Stream& stream);
void CudaMambaConvRows(const MambaConvRowsOp<TensorView>& op, Stream& stream);
void CudaSsdScanRows(const SsdScanRowsOp<TensorView>& op, Stream& stream);

}  // namespace millrace
