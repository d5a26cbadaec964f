// Which ranks have the parts of a flat parameter and of its gradient. Internal to the checker.
//
// An update says along which axes its shards lie (flat_begin of AdamWOp and RouterBiasOp,
// shard_axes of Muon's ops). What gathers those weights, or copies of them, what leaves the
// gradient that the update reads, and what exchanges shards for whole matrices go over the same
// axes; between replicas all gradients are summed over the same axes.
//
// Many plans update nothing, those of evaluation and inference, and a run may have no other. Of the
// states of a run its ShardLayout says the same (seams.h), and that holds in each of its plans.
#pragma once

#include <map>

#include "runtime/plan/check/violation.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// Of a buffer of shards the group whose ranks have one each; axes of several ranks only.
using ShardAxes = std::map<BufferId, AxisSet>;

// Appends at most one violation. `states`: what is known before the plan says a word; updates that
// say something else are violations.
void FindShardViolations(const StepPlan& plan, const Mesh& mesh, const ShardAxes& states,
                         Violations* found);

}  // namespace millrace
