// Views [B,T,C] and [B,T,H,C] of f32 or bf16 as kernels take them: rows of neighbours (rows.h), one
// for each position, or for each head of each position.
#pragma once

#include "kernels/cuda/rows.h"

namespace millrace::cuda {

struct Sequence {
  Rows rows;  // stride: from position to position; wide: every row, of every head
  int64_t batch_stride = 0, head_stride = 0;
};

}  // namespace millrace::cuda
