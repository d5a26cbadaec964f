// Which operands an op may read before the one ahead of it has ended (RowLinearAttrs::constant).
#pragma once

#include "runtime/plan/step_plan.h"

namespace millrace {

// Whether nothing that the schedule runs writes what RowLinearOp::VisitConstants names: all of it
// lies in states, and no op of a step writes to these, on this rank or, by a collective, another's.
bool ReadsConstants(const StepPlan& plan, const RowLinearOp<View>& op);

// Says so of each such op of a step.
void MarkConstants(StepPlan* plan);

}  // namespace millrace
