// The border between ssd.cc and the scan's kernels. What passes lie behind each other in a stream
// leave to the next is in the op's scratch: SsdScratch.
#pragma once

#include "kernels/cuda/rows.h"
#include "kernels/cuda/sequence.h"
#include "kernels/ops/cuda_ssd.h"
#include "runtime/base/cuda/launch.h"

namespace millrace::cuda {

struct SsdArgs {
  // SsdSizes, and of a chunk the positions that its arrays have: `rows`.
  int batch = 0, length = 0, heads = 0, channels = 0, groups = 0, states = 0;
  int chunk = 0, chunks = 0, rows = 0, heads_of_group = 0;
  Sequence x, b, c, out;  // of the gradient: out is d_out
  const float* dt = nullptr;
  Rows a_log, d;  // flat
  // The gradient only.
  Sequence d_x, d_b, d_c;
  float* d_dt = nullptr;
  Rows d_a_log, d_d;
  bool add_a_log = false, add_d = false;
  // Scratch.
  void* decay = nullptr;
  void* states_before = nullptr;
  float* steps_or_pairs = nullptr;
  void* states_behind = nullptr;
  void* d_pairs = nullptr;
  float* spans = nullptr;
  float* d_u = nullptr;
  double* sums = nullptr;
  float* state_spans = nullptr;
};

// In f32, any shapes.
void LaunchSsdPlain(const SsdArgs& args, const Launch& launch);
void LaunchSsdGradPlain(const SsdArgs& args, const Launch& launch);
// bf16 products: SsdOnTensorCores.
void LaunchSsdCores(const SsdArgs& args, const Launch& launch);
void LaunchSsdGradCores(const SsdArgs& args, const Launch& launch);

// d_a_log and d_d of the chunks' sums, in order of batch and chunk.
void LaunchSsdSums(const SsdArgs& args, const Launch& launch);

}  // namespace millrace::cuda
