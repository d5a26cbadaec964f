// The border between norm.cc, which checks, and norm.cu and norm_grad.cu, which run. Enqueues on
// the launch's stream; zero rows launch nothing but the sums.
#pragma once

#include "kernels/cuda/views.h"
#include "kernels/ops/cuda_blocking.h"

namespace millrace::cuda {

static_assert(kNormPack == kPack);

struct NormArgs {
  Rows x, residual, weight, bias, sum, out;
  float* mean = nullptr;
  float* rstd = nullptr;
  uint32_t* magnitude = nullptr;
  int64_t rows = 0;
  int columns = 0;
  double per_column = 0;  // 1 / columns
  RowShape shape;
  float eps = 0;
  bool layer = false;  // else rms
};
void LaunchNorm(const NormArgs& args, Elements elements, const Launch& launch);

struct NormGradArgs {
  Rows d_out, x, weight, d_bypass, d_x;
  const float* mean = nullptr;  // absent: 0, rms
  const float* rstd = nullptr;
  double* partials = nullptr;  // [blocks, sums, columns]
  uint32_t* magnitude = nullptr;
  int64_t rows = 0;
  int columns = 0;
  int blocks = 0;
  int sums = 0;           // 1, or 2 with a bias
  double per_column = 0;  // 1 / columns
  RowShape shape;
};
void LaunchNormGrad(const NormGradArgs& args, Elements elements, const Launch& launch);

struct NormSumsArgs {
  const double* partials = nullptr;  // [blocks, sums, columns]
  Rows d_weight, d_bias;
  int columns = 0;
  int blocks = 0;
  int sums = 0;
  bool add_weight = false, add_bias = false;
};
void LaunchNormSums(const NormSumsArgs& args, Elements elements, const Launch& launch);

}  // namespace millrace::cuda
