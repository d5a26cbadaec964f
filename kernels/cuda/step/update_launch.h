// The border between update.cc and update.cu.
#pragma once

#include "kernels/cuda/ranges.h"
#include "kernels/cuda/views.h"
#include "kernels/ops/step_ops.h"

namespace millrace::cuda {

void LaunchBeginStep(StepScalars* scalars, const LearningRate& schedule, const Launch& launch);

// Elements [begin, end) of the shard; begin is a multiple of kPack.
struct AdamWArgs {
  Rows master, m, v, grad, compute;
  const StepScalars* scalars = nullptr;
  int64_t begin = 0, end = 0;
  double beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
};
// `decay`: in elements of the shard, ascending and disjoint; those outside
// [begin, end) do not matter.
void LaunchAdamW(const AdamWArgs& args, const Ranges& decay, const Launch& launch);

}  // namespace millrace::cuda
