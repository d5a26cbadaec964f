// The border between expert_activation.cc and expert_activation.cu.
#pragma once

#include "kernels/cuda/rows.h"
#include "runtime/base/cuda/launch.h"
#include "runtime/base/policies.h"

namespace millrace::cuda {

// Forward: out from x. Backward: d_x and d_weights from x and d_out.
struct ExpertActivationArgs {
  Rows x, out, d_out, d_x;
  const float* weights = nullptr;
  float* d_weights = nullptr;
  const int32_t* live = nullptr;
  int64_t slots = 0;
  int columns = 0;  // F
};
void LaunchExpertActivation(const ExpertActivationArgs& args, ActivationKind kind,
                            const Launch& launch);
void LaunchExpertActivationGrad(const ExpertActivationArgs& args, ActivationKind kind,
                                const Launch& launch);

}  // namespace millrace::cuda
