// The border between activation.cc and activation.cu.
#pragma once

#include "kernels/cuda/divide.h"
#include "kernels/cuda/views.h"
#include "runtime/base/policies.h"

namespace millrace::cuda {

// Forward: out from x. Backward: d_x from x and d_out.
struct ActivationArgs {
  Rows x, out, d_out, d_x;
  uint32_t* magnitude = nullptr;  // of what is written
  uint32_t packs = 0;             // of all rows of out
  Divisor row_packs;              // per row of out
  int columns = 0;                // F
  ActivationKind kind = ActivationKind::kGelu;
};
void LaunchActivation(const ActivationArgs& args, Elements elements, const Launch& launch);
void LaunchActivationGrad(const ActivationArgs& args, Elements elements, const Launch& launch);

}  // namespace millrace::cuda
