// That rows which receive buffers have no room for cannot go unnoticed (ExpertPiecesOp::dropped).
// Internal to the checker.
//
// Counted  Pieces that have less room than can come count what they leave out: each count begins
//          anew in the first microbatch, and is added to by the others.
// Summed   Between that and the statistics of the step each count is summed over all ranks, once.
// Heard    The statistics read all of them, and nothing that nobody counted: the update is
//          predicated on that, as on all that they read. A plan without them has room for all rows.
#pragma once

#include "runtime/plan/check/violation.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// Appends at most one violation.
void FindOverflowViolations(const StepPlan& plan, const Mesh& mesh, Violations* found);

}  // namespace millrace
