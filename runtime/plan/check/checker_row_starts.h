// The rank integers of a plan that say which rows a rank has. Internal to the checker.
#pragma once

#include "runtime/plan/check/violation.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// The axes over which sequences are split; none where they are whole. Appends at most one
// violation: ops that name different axes; starts that are not those of a rank's two chunks
// (kernels/ops/context_rows.h); ops of one kind in a body that do not take each row of the
// microbatch as often as the others, over the ranks that share it.
AxisSet FindRowStarts(const StepPlan& plan, const Mesh& mesh, Violations* found);

}  // namespace millrace
