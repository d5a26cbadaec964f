// What a run's report shows of the plan.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/report/plan_report.h"
#include "runtime/record/report/memory_map.h"
#include "runtime/record/report/timeline_op.h"

namespace millrace {

// The training plan of the run's last call, planned again, on one rank
// (plan_report.h, Definitions).
struct PlannedStep {
  std::string hash, machine;  // PlanHash; the title of the machine that times are for
  std::array<int64_t, kBufferClasses> by_class{}, at_peak{};
  int64_t arena = 0, lower_bound = 0;
  ArenaMap map;
  std::vector<TimelineOp> ops;
};

PlannedStep PlannedStepOf(const ReportInput& input);

}  // namespace millrace
