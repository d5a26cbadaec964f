// The border between router_bias.cc and router_bias.cu.
#pragma once

#include "kernels/cuda/ranges.h"
#include "runtime/base/cuda/launch.h"
#include "runtime/base/step_scalars.h"

namespace millrace::cuda {

// load[e] (=|+=) offsets[e+1] - offsets[e], e < experts.
struct ExpertLoadArgs {
  const int32_t* offsets = nullptr;
  float* load = nullptr;
  int experts = 0;
  bool accumulate = false;
};
void LaunchExpertLoad(const ExpertLoadArgs& args, const Launch& launch);

struct RouterBiasArgs {
  float* bias = nullptr;
  const float* load = nullptr;
  const StepScalars* scalars = nullptr;
  int64_t pairs = 0, experts = 1;
  float rate = 0;
};
// `ranges`: of elements of the shard, disjoint; at least one.
void LaunchRouterBias(const RouterBiasArgs& args, const Ranges& ranges, const Launch& launch);

}  // namespace millrace::cuda
