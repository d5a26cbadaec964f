// The border between norm.cc, which checks, and norm.cu and norm_grad.cu, which run. Enqueues on
// the launch's stream; zero rows launch nothing but the sums.
#pragma once

#include "kernels/cuda/views.h"
#include "kernels/ops/cuda_blocking.h"

namespace millrace::cuda {

// How the packs of a row are dealt to threads: pack p belongs to thread p % (32 * warps), and is
// its p / (32 * warps)-th of `packs`.
struct RowShape {
  int warps = 1;  // per row: a power of two
  int packs = 1;  // per thread: 1 to 4
};
inline constexpr int kMaxRowWarps = 16;
inline constexpr int64_t kMaxNormColumns = int64_t{kMaxRowWarps} * 32 * 4 * kPack;

// The fewest warps that leave a thread at most `packs`, a number that does not spill registers.
constexpr RowShape RowShapeOf(int64_t columns, int packs) {
  RowShape shape;
  while (shape.warps < kMaxRowWarps && Packs(columns) > int64_t{shape.warps} * 32 * packs)
    shape.warps *= 2;
  shape.packs =
      columns > 0 ? static_cast<int>(CeilDiv(Packs(columns), int64_t{shape.warps} * 32)) : 1;
  return shape;
}

// Most packs per thread that leave no registers to spill; norm_grad on f32 spills at three.
inline constexpr int kNormPacks = 4, kNormGradPacks = 3, kNormGradPacksF32 = 2;

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
  Rows d_out, x, weight, d_bypass, d_x, d_weight, d_bias;
  const float* mean = nullptr;  // absent: 0, rms
  const float* rstd = nullptr;
  double* partials = nullptr;  // [blocks, 2, columns]: d_weight, d_bias
  uint32_t* magnitude = nullptr;
  int64_t rows = 0;
  int columns = 0;
  int blocks = 0;
  double per_column = 0;  // 1 / columns
  RowShape shape;
  bool add_weight = false, add_bias = false;
};
void LaunchNormGrad(const NormGradArgs& args, Elements elements, const Launch& launch);

// Rows that a block of norm_grad works on at a time.
constexpr int NormGradGroups(RowShape shape) { return shape.warps < 8 ? 8 / shape.warps : 1; }

// Blocks among which the rows are dealt, so that each gets as many as any other.
constexpr int NormGradBlocksFor(int64_t rows, RowShape shape) {
  const int64_t groups = NormGradGroups(shape);
  const int64_t turns = CeilDiv(rows, kNormGradBlocks * groups);
  return static_cast<int>(CeilDiv(rows, (turns > 0 ? turns : 1) * groups));
}

}  // namespace millrace::cuda
