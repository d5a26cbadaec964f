// The border between muon.cc and muon.cu. All views are flat, n elements, f32 or bf16; zero launch
// nothing.
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

struct MuonNormaliseArgs {
  Rows x;
  const double* sum_squares = nullptr;
  int64_t n = 0;
  double eps = 0;
};
void LaunchMuonNormalise(const MuonNormaliseArgs& args, const Launch& launch);

// Of `rows` rows and as many columns.
struct MuonPolynomialArgs {
  Rows gram, square, out;
  int64_t rows = 0, n = 0;
  float a = 0, b = 0, c = 0;
};
void LaunchMuonPolynomial(const MuonPolynomialArgs& args, const Launch& launch);

struct MuonUpdateArgs {
  Rows ortho, master, compute;
  const StepScalars* scalars = nullptr;
  int64_t n = 0;
  double lr_scale = 0, weight_decay = 0;
};
void LaunchMuonUpdate(const MuonUpdateArgs& args, const Launch& launch);

}  // namespace millrace::cuda
