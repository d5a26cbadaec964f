// Which communicators plans call for.
#pragma once

#include <vector>

#include "comm/comm_set.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// One per axes and stream that a collective of these plans names, with the kinds of call. Equal on
// all ranks that plan the same, which CommSet requires.
std::vector<CommSpec> CommSpecsOf(const std::vector<const StepPlan*>& plans);

}  // namespace millrace
