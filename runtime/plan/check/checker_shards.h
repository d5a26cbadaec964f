// Which ranks have the parts of a flat parameter and of its gradient. Internal to the checker.
//
// An update says along which axes its shards lie (flat_begin of AdamWOp and RouterBiasOp,
// shard_axes of Muon's ops). What gathers those weights, or copies of them, what leaves the
// gradient that the update reads, and what exchanges shards for whole matrices go over the same
// axes; between replicas all gradients are summed over the same axes. A plan that updates nothing
// gathers states as the plan lays them that does.
#pragma once

#include <map>

#include "runtime/plan/check/violation.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// Of a buffer of shards the group whose ranks have one each.
using ShardAxes = std::map<BufferId, AxisSet>;

// What `plan`'s updates say, and copies of it; in all of a run's plans states have one BufferId.
ShardAxes ShardAxesOf(const StepPlan& plan, const Mesh& mesh);

// Appends at most one violation. `states`: of states, what another plan of the run says.
void FindShardViolations(const StepPlan& plan, const Mesh& mesh, const ShardAxes& states,
                         Violations* found);

}  // namespace millrace
