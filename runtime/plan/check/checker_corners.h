// Which ranks a plan is walked for. Internal to the checker.
#pragma once

#include <vector>

#include "runtime/plan/step_plan.h"

namespace millrace {

// Every corner of the axes that some op's bytes depend on (CornerRanks, checker.h).
std::vector<int> CornersOf(const StepPlan& plan, const Mesh& mesh);

}  // namespace millrace
