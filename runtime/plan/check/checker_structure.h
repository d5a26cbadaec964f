// What can be said about a plan without walking its schedule. Internal to the checker.
#pragma once

#include "runtime/plan/check/violation.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// Bodies, entries, edges, addresses, overlap of live buffers, sticky buckets, communicators.
void FindStructuralViolations(const StepPlan& plan, const Mesh& mesh, int accumulate,
                              Violations* found);

}  // namespace millrace
