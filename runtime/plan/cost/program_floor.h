// What every plan of a lowered program takes at least, however its parameters are sharded: for
// searches, which need not plan what cannot be among the best. Pure.
#pragma once

#include <cstdint>

#include "runtime/base/dtype.h"
#include "runtime/base/mesh.h"
#include "runtime/plan/cost/machine.h"
#include "runtime/plan/lower/lower.h"

namespace millrace {

struct FloorInput {
  const Program& program;  // of a training microbatch
  Mesh mesh;               // any with the program's context, expert and tensor
  const Machine& machine;  // as its ranks share it
  int accumulate = 1;
  DType gradients = DType::kF32;        // of weights: the narrowest that they may be formed in
  bool weight_gradients_apart = false;  // PlanOptions::overlap_weight_gradients
};

struct ProgramFloor {
  // Of a step, where gathers, reductions and the update take no time: each of the two streams runs
  // its ops in order, an op waits for who writes the bytes that it reads, and the power cap asks
  // for its time (a thousandth less: a simulation ends that close to it).
  double seconds = 0;
  int64_t activation_bytes = 0;  // that are live at once
};
ProgramFloor FloorOf(const FloorInput& input);

}  // namespace millrace
