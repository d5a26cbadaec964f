// The border between sample.cc and sample.cu.
#pragma once

#include "kernels/cuda/rows.h"
#include "kernels/ops/sample_ops.h"
#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

struct SampleArgs {
  Rows logits;
  const SampleParams* params = nullptr;  // [rows]
  int32_t *token = nullptr, *top_ids = nullptr;
  float *logprob = nullptr, *top_logprobs = nullptr;
  int rows = 0, vocab = 0;
  int most = 0;  // columns of top_*
  // Behind it comes a kernel of this op that reads logits ahead of its BeginKernel.
  bool followed = false;
  bool sixteen = false;  // HasClusterOfSixteen
};
// Whether the current device takes a cluster of sixteen blocks; not all do that take eight.
bool HasClusterOfSixteen();
void LaunchSample(const SampleArgs& args, const Launch& launch);

}  // namespace millrace::cuda
