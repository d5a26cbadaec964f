// The border between update.cc and update.cu.
#pragma once

#include "kernels/cuda/ranges.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/step_ops.h"

namespace millrace::cuda {

void LaunchBeginStep(StepScalars* scalars, const BeginStepAttrs& attrs, const Launch& launch);

// Elements [begin, end) of the shard; begin is a multiple of kPack.
struct AdamWArgs {
  Rows master, m, v, grad, compute;
  const StepScalars* scalars = nullptr;
  int64_t begin = 0, end = 0;
  double lr_scale = 1, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
};
// `decay`: in elements of the shard, ascending and disjoint; those outside
// [begin, end) do not matter.
void LaunchAdamW(const AdamWArgs& args, const Ranges& decay, const Launch& launch);

// Parts of the shard, each with constants of its own and blocks of its own. As an argument of a
// kernel, as Ranges are.
struct Stretch {
  int64_t begin = 0, end = 0;  // elements of the shard; `begin` of a launch is the first's
  int64_t first_block = 0;
  double lr_scale = 1, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
};
inline constexpr int kStretchesPerLaunch = 56;  // 3.5 KiB
struct Stretches {
  int count = 0;
  Stretch of[kStretchesPerLaunch];
};
// Of args its rows and scalars alone; `first_block` is filled in here. All that decay does is in
// each stretch's weight_decay.
void LaunchAdamWStretches(const AdamWArgs& args, Stretches stretches, const Launch& launch);

// Runs as an argument of a kernel, as Ranges are; `first` of each is that of this rank's place.
inline constexpr int kRunsPerLaunch = 48;  // 3.4 KiB
struct NarrowRuns {
  int count = 0;
  uint64_t decays = 0;     // bit r: of run r
  int64_t flat_begin = 0;  // element i of the shard is flat element flat_begin + i
  LogicalRun of[kRunsPerLaunch];
};
// Moments are bf16. `runs`: all that reach into [begin, end), in order.
void LaunchAdamWNarrow(const AdamWArgs& args, const NarrowRuns& runs, const Launch& launch);

}  // namespace millrace::cuda
