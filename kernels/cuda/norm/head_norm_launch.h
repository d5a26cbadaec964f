// The border between head_norm.cc and head_norm.cu.
#pragma once

#include "kernels/cuda/divide.h"
#include "kernels/cuda/views.h"

namespace millrace::cuda {

// Forward: out and rstd from x. Backward: d_x and the partial sums from d_out, x and rstd.
struct HeadNormArgs {
  Rows x, q_weight, k_weight, out, d_out, d_x, d_q_weight, d_k_weight;
  float* rstd = nullptr;       // [rows, heads + kv_heads]
  double* partials = nullptr;  // [blocks, 2, depth]
  uint32_t turns = 0;          // heads of all rows, values included
  Divisor row_heads;           // heads + 2 kv_heads
  int heads = 0, kv_heads = 0, depth = 0;
  int blocks = 0;  // of the gradient
  float eps = 0;
  bool add_q = false, add_k = false;
};
void LaunchHeadNorm(const HeadNormArgs& args, const Launch& launch);
void LaunchHeadNormGrad(const HeadNormArgs& args, const Launch& launch);

}  // namespace millrace::cuda
