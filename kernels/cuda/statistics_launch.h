// The border between statistics.cc and statistics.cu.
#pragma once

#include "kernels/cuda/views.h"
#include "kernels/ops/step_ops.h"

namespace millrace::cuda {

struct FiniteScanArgs {
  Rows x;
  int64_t n = 0;
  double* bad_count = nullptr;
  const StepScalars* scalars = nullptr;
  int64_t unit = 0, inject_index = 0;
  bool accumulate = false;
};
void LaunchFiniteScan(const FiniteScanArgs& args, const Launch& launch);

// partials f64 [blocks].
void LaunchSumSquares(const Rows& x, int64_t n, double* partials, int blocks, double* out,
                      const Launch& launch);

struct StepStatsArgs {
  const double* rows = nullptr;  // [world, 2 * units + 1]
  StepScalars* scalars = nullptr;
  int64_t world = 0;
  StepStatsAttrs attrs;
};
void LaunchStepStats(const StepStatsArgs& args, const Launch& launch);

}  // namespace millrace::cuda
