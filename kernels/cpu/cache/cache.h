// kernels/ops/cache_ops.h: states that are cleared, rows that are cached, and attention over them,
// on the CPU.
#pragma once

#include "kernels/ops/cache_ops.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

void ClearCache(const ClearCacheOp<TensorView>& op, Stream& stream);
void KeepRange(const KeepRangeOp<TensorView>& op, Stream& stream);
void CachedAttention(const CachedAttentionOp<TensorView>& op, Stream& stream);

}  // namespace millrace::cpu
