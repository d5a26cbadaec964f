// Which ranks have the parts of a flat parameter and of its gradient. Internal to the checker.
//
// An update says along which axes its shards lie (AdamWOp::flat_begin). What gathers those weights,
// or copies of them, and what leaves the gradient that the update reads, go over the same axes;
// between replicas all gradients are summed over the same axes.
#pragma once

#include "runtime/plan/check/violation.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// Appends at most one violation. Nothing is known of a plan that updates nothing.
void FindShardViolations(const StepPlan& plan, const Mesh& mesh, Violations* found);

}  // namespace millrace
