// A part of a shard as an operand of its own: what a launch for one segment takes.
#pragma once

#include "runtime/base/tensor_view.h"

namespace millrace::cuda {

// Elements [begin, end) of a contiguous view; an absent one stays absent.
inline TensorView PartOf(const TensorView& shard, int64_t begin, int64_t end) {
  if (!shard) return shard;
  return {shard.data + begin * Bytes(shard.dtype()), DenseLayout(shard.dtype(), {end - begin})};
}

}  // namespace millrace::cuda
