// The border between statistics.cc and statistics.cu.
#pragma once

#include "kernels/cuda/views.h"
#include "kernels/ops/step_ops.h"

namespace millrace::cuda {

struct FiniteScanArgs {
  Rows x;
  int64_t n = 0;
  double* bad_count = nullptr;
  unsigned long long* ticket = nullptr;  // bad_count's own
  const StepScalars* scalars = nullptr;
  int64_t unit = 0, inject_index = 0;
  bool accumulate = false;
};
void LaunchFiniteScan(const FiniteScanArgs& args, const Launch& launch);

struct SumSquaresArgs {
  Rows x;
  int64_t n = 0;
  int blocks = 0;                        // SumSquaresBlocks(n)
  double* partials = nullptr;            // f64 [blocks]; not used by one block
  unsigned long long* ticket = nullptr;  // the partials' own
  double* out = nullptr;
  // Of a finite_scan, which also has the sum, its count and its fault; else null.
  double* bad_count = nullptr;
  const StepScalars* scalars = nullptr;
  int64_t unit = 0, inject_index = 0;
  bool accumulate = false;
};
void LaunchSumSquares(const SumSquaresArgs& args, const Launch& launch);

struct StepStatsArgs {
  const double* rows = nullptr;  // [world, row.width]
  StepScalars* scalars = nullptr;
  int64_t world = 0;
  StepStatsAttrs attrs;
  StatsRow row;                     // of attrs.units and losses
  const float* overflow = nullptr;  // [blocks]
  int64_t blocks = 0;
};
void LaunchStepStats(const StepStatsArgs& args, const Launch& launch);

}  // namespace millrace::cuda
