// The border between muon.cc and muon.cu. Views are flat, n elements, f32 or bf16, where nothing
// else is said; zero launch nothing.
#pragma once

#include "kernels/cuda/views.h"

namespace millrace::cuda {

struct MuonMomentumArgs {
  Rows grad, m, out;
  const StepScalars* scalars = nullptr;
  int64_t n = 0;
  double momentum = 0;
  bool nesterov = true;
};
void LaunchMuonMomentum(const MuonMomentumArgs& args, const Launch& launch);

// Matrices of n elements; the j-th of group g is at g * group_stride + j * n of x, and at
// (g * of_group + j) * n of out.
struct MuonNormaliseArgs {
  Rows x, out;
  int64_t n = 0, groups = 0, of_group = 0, group_stride = 0;
  double* partials = nullptr;  // [matrices, MatrixSquaresBlocks(n)]
  double eps = 0;
};
void LaunchMuonNormalise(const MuonNormaliseArgs& args, const Launch& launch);

struct MuonUpdateArgs {
  Rows ortho, master, compute;
  const StepScalars* scalars = nullptr;
  int64_t n = 0;
  double lr_scale = 0, weight_decay = 0;
};
void LaunchMuonUpdate(const MuonUpdateArgs& args, const Launch& launch);

}  // namespace millrace::cuda
