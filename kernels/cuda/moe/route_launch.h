// The border between route.cc and route.cu.
#pragma once

#include "kernels/cuda/rows.h"
#include "runtime/base/cuda/launch.h"

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
  const float* balance = nullptr;  // backward: [rows / group_rows, experts], optional
  int group_rows = 1;
  int balanced_stride = 0;  // forward: of GateKind::kBalanced; 0: the scores choose
};
void LaunchRoute(const RouteArgs& args, const Launch& launch);
void LaunchRouteGrad(const RouteArgs& args, const Launch& launch);

// stats from logits and ids of `route`, whose group_rows are those of each group.
struct RouterStatsArgs {
  RouteArgs route;
  float* stats = nullptr;     // [groups, 2, experts]
  float* partials = nullptr;  // scratch [groups, tiles, 2, experts]
  int groups = 0, tiles = 0;
  bool accumulate = false;
};
void LaunchRouterStats(const RouterStatsArgs& args, const Launch& launch);

struct RouterBalanceArgs {
  const float* stats = nullptr;  // [groups, 2, experts]
  float* balance = nullptr;      // [groups, experts]
  double* loss_sum = nullptr;
  const StepScalars* scalars = nullptr;
  // Of the loss, rows * factor; of the slope, loss_weight * tokens * factor.
  double loss_factor = 0, slope_factor = 0;
  int groups = 0, experts = 0;
  bool accumulate = false;
};
void LaunchRouterBalance(const RouterBalanceArgs& args, const Launch& launch);

}  // namespace millrace::cuda
