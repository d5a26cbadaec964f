// The border between conv.cc, gated_norm.cc and conv.cu, gated_norm.cu.
#pragma once

#include "kernels/cuda/rows.h"
#include "kernels/cuda/sequence.h"
#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

// MambaConvOp, and beside it what its gradient has.
struct ConvArgs {
  int batch = 0, length = 0, channels = 0, heads = 0, width = 0;
  Sequence x, dt_raw;
  Rows weight, bias, dt_bias;  // flat
  float dt_min = 0, dt_max = 0;
  bool bf16 = false;    // x, out, d_x are
  Sequence out;         // of the gradient: d_out
  float* dt = nullptr;  // of the gradient: d_dt
  // The gradient only.
  Sequence d_x, d_dt_raw;
  Rows d_weight, d_bias, d_dt_bias;  // flat
  bool add_weight = false, add_bias = false, add_dt_bias = false;
  float* partials = nullptr;  // [row blocks, sums]: d_weight by taps [K,C], d_bias [C], d_dt_bias
};
void LaunchConv(const ConvArgs& args, const Launch& launch);
void LaunchConvGrad(const ConvArgs& args, const Launch& launch);

struct GatedNormArgs {
  int64_t rows = 0;
  int groups = 0, columns = 0;  // of a group
  float eps = 0;
  Rows y, z, weight, out;  // of the gradient: out is d_out
  float* rstd = nullptr;
  // The gradient only.
  Rows d_y, d_z, d_weight;
  bool add_weight = false;
  float* partials = nullptr;  // [kGatedNormBlocks, groups * columns]
};
void LaunchGatedNorm(const GatedNormArgs& args, Elements elements, const Launch& launch);
void LaunchGatedNormGrad(const GatedNormArgs& args, Elements elements, const Launch& launch);

}  // namespace millrace::cuda
