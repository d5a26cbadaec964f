// Whether ranks that generate together draw one token. Internal to the checker.
//
// Ranks along context and tensor have other parts of some weights, and what an op makes of those
// differs from rank to rank, until it is summed or gathered over these axes. What the host reads of
// a plan whose rows are those of sequences that keep caches must not differ: each rank goes on by
// itself with the token that it finds. A sum that is left out, or goes over other ranks, leaves
// bytes that are written and in order; what is wrong is that they are not the same. And where ranks
// gather columns of what they have formed, they are: so what a product makes of columns that differ
// is a term of a sum over these ranks, and so is all that is made of it, until they sum it.
#pragma once

#include "runtime/plan/check/violation.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// Appends at most one violation. Plans without such rows, or of one rank per data rank, have none.
void FindAnswerViolations(const StepPlan& plan, const Mesh& mesh, int accumulate,
                          Violations* found);

}  // namespace millrace
