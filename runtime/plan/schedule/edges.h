// Cross-stream edges, derived from the bytes that ops touch: nobody places an event by hand.
#pragma once

#include "runtime/plan/step_plan.h"

namespace millrace {

// Sets the edges of plan.schedule and plan.prologue, each on its own: streams are joined between
// them. An op waits for the latest op of each other stream that touched a byte it touches, one of
// the two writing it, unless an earlier wait of its stream or another of its own implies it: no
// edge can be left out. Needs addresses.
void DeriveEdges(StepPlan& plan, const Mesh& mesh, int accumulate);

}  // namespace millrace
