// The border between route.cc and route.cu.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows.h"

namespace millrace::cuda {

// Forward: ids and weights from logits. Backward: d_logits from logits, ids and d_weights.
struct RouteArgs {
  const float *logits = nullptr, *bias = nullptr, *d_weights = nullptr;
  int32_t* ids = nullptr;
  float* weights = nullptr;
  Rows d_logits;
  int rows = 0, experts = 0, top_k = 0, groups = 1, top_groups = 1;
  bool sigmoid = false, normalise = true;
  float scaling = 1;
};
void LaunchRoute(const RouteArgs& args, const Launch& launch);
void LaunchRouteGrad(const RouteArgs& args, const Launch& launch);

}  // namespace millrace::cuda
