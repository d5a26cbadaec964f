// What changes from step to step, in one block of device memory (class "runtime" of the arena).
// Kernels read it through a pointer: an argument passed by value would freeze in a recorded or
// captured step. The host writes the first group before a launch; ops of the plan write the rest.
#pragma once

#include <cstdint>

namespace millrace {

// What offender_unit says where no flat parameter is to blame.
inline constexpr int64_t kOffenderLoss = -1;  // the loss of offender_rank is not finite
inline constexpr int64_t kOffenderNone =
    -2;  // applied; or what is not finite is so only in a sum over ranks
inline constexpr int64_t kOffenderSpike = -3;  // all is finite, and the loss above max_loss
// And below: kOffenderOverflow - i says that receive buffers of block i of those that may overflow
// (StepPlan::overflows) had no room for all rows.
inline constexpr int64_t kOffenderOverflow = -4;
constexpr bool IsOverflow(int64_t offender_unit) { return offender_unit <= kOffenderOverflow; }

struct StepScalars {
  // Written by the host before each launch.
  int64_t step;  // 0-based index of this step; drives the learning-rate schedule
  double
      inv_valid_tokens;  // 1 / (valid target tokens of the whole step, all ranks and microbatches)
  int32_t token_parity;  // which half of the token buffer this step reads: 0 or 1
  int32_t generate_row;  // generation: row of the sequence whose logits are wanted
  int32_t inject_loss_nan;  // fault injection (tests): != 0 makes this rank's loss NaN
  // Fault injection (tests): flat parameter whose gradient gets a NaN on this rank; -1 none.
  int32_t inject_grad_unit = -1;
  double max_loss;  // a loss above it is a spike, and its update is not applied; 0: none is

  // Written by BeginStep.
  double lr;  // learning rate of this step
  // What the gradient of this step's loss is multiplied by, a power of two; 1 where gradients are
  // not scaled (LossScaling).
  float loss_scale = 1;
  // State, written by StepStats: of the next step; 0: there was none yet. Part of a checkpoint.
  float next_loss_scale = 0;

  // Written by StepStats; every rank computes the same bits.
  double loss;       // sum over valid tokens * inv_valid_tokens
  double grad_norm;  // global L2 norm before clipping, of gradients that are not scaled
  // What the update multiplies gradients by: min(1, clip / grad_norm), or 1 when clipping is off,
  // over loss_scale.
  double clip_scale;
  // 1: loss and every gradient are finite, the loss is no spike, no receive buffer has overflown:
  // the update is applied.
  int32_t applied;
  // 1: it was not applied because gradients, not the loss, are not finite at a loss scale that can
  // be smaller, and has become so: an overflow that scaling expects.
  int32_t scaled_down;
  int64_t offender_unit;  // flat parameter with the first non-finite gradient, or one of the above
  int32_t offender_rank;  // world rank that contributed it; -1 none

  // State; part of a checkpoint.
  int32_t clean_steps;  // updates applied since the loss scale was last changed
  int64_t adam_t;       // number of updates applied, this one included once StepStats has run
  int64_t skipped;      // number of steps whose update was not applied
  int64_t scale_downs;  // of these, those that have scaled down
};
// Plans say how large it is, and checkpoints are compared by their plans.
static_assert(sizeof(StepScalars) == 128);

}  // namespace millrace
