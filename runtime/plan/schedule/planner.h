// The planner: a lowered program and a shard layout become a StepPlan. Inserts the sharding ops
// (downcast, all-gather, concat, reduce-scatter, norm, clip, update), assigns streams, gives every
// byte an address, derives every cross-stream edge. Pure; equal on all ranks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/cost.h"
#include "runtime/base/policies.h"
#include "runtime/plan/layout/param_groups.h"
#include "runtime/plan/layout/shard_layout.h"
#include "runtime/plan/lower/lower.h"
#include "runtime/plan/pool/allocator.h"
#include "runtime/plan/schedule/gather_schedule.h"
#include "runtime/plan/state_layout.h"

namespace millrace {

struct AdamWHyper {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  bool operator==(const AdamWHyper&) const = default;
};

struct MuonHyper {
  double momentum = 0.95;
  bool nesterov = true;
  int steps = 5;  // of the Newton-Schulz iteration
  std::array<double, 3> coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;
  MuonAdjust adjust = MuonAdjust::kMatchRmsAdamW;
  double lr_scale = 1;  // of the learning rate, which is AdamW's
  double weight_decay = 0.1;
  // Of the matrices that a rank orthogonalises at once, about: from some tens of millions on, the
  // products of a shape fill a GPU however small one of them is, and more takes more memory. At
  // least one matrix, and what follows the shards of a round is as large as that, if it has more.
  int64_t batch_numel = int64_t{48} << 20;
  bool operator==(const MuonHyper&) const = default;
};

struct PlanOptions {
  // Of one training microbatch on one rank; sizes the inputs of every plan of the run.
  BatchShape shape;
  int accumulate = 1;
  Reshard reshard = Reshard::kAfterForward;
  Downcast downcast = Downcast::kPerGather;
  GradSync grad_sync = GradSync::kLast;
  GradConcat grad_concat = GradConcat::kDirect;
  AllocatorKind allocator = AllocatorKind::kPacked;
  int prefetch = 1;
  int slots = 2;  // >= prefetch + 1: parameter buckets of blocks that live at once
  // Later reductions that may be issued before a gradient bucket's bytes are reused.
  int reduce_depth = 1;
  // 0: none. More than this: Error(kDoesNotFit); kAuto keeps as many blocks gathered as fit.
  int64_t budget_bytes = 0;
  // Gradients of weights and biases are computed on the reduce stream, beside those of
  // activations, and their operands are held a little longer for it; so are updates of small flats,
  // beside those of large ones. Small products leave room on a GPU, large ones do not.
  bool overlap_weight_gradients = false;
  AdamWHyper adamw;
  MuonHyper muon;
  ParamGroups groups;  // whose parameters have other constants
  double clip = 0;     // <= 0: off
  LossScaling scaling;
  LearningRate learning_rate;
  Backend backend = Backend::kCpu;
  int64_t comm_scratch_bytes =
      0;                  // per communicator purpose: what the transport stages (0 at world 1)
  std::string execution;  // goes into the plan's text and hash
};

// All that the plans of a run keep between each other: what `layout` and `options` ask for, a state
// by_parity for each source of inputs, and the constants of all `programs` (at least one), each
// once. Constants of one name and another content are several. Error(kInternal) unless all programs
// have the same sources and losses.
StateLayout PlanStates(const ShardLayout& layout, const PlanOptions& options,
                       const std::vector<const Program*>& programs);

// A program with gradients becomes a training step, one without a plan that runs it once. `states`:
// the run's, made with this program among others.
// Errors: kConfig for option combinations that cannot be planned (named by config
// key), kDoesNotFit over budget.
StepPlan PlanStep(const ShardLayout& layout, const StateLayout& states, const Program& program,
                  const PlanOptions& options, const std::string& name);

// The same without addresses and edges, in a fraction of the time: bodies, lifetimes, and the lower
// bound, which no arena of this plan is below. For searches; it cannot be run. The budget is not
// looked at; reshard=auto is planned as after_forward.
StepPlan DraftStep(const ShardLayout& layout, const StateLayout& states, const Program& program,
                   const PlanOptions& options, const std::string& name);

}  // namespace millrace
