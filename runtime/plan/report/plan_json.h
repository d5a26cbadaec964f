// The report as JSON: the contract of `millrace plan --json`. Keys are stable; new ones may be
// added. Bytes are integers, times are seconds, MFU a fraction.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "runtime/plan/report/plan_report.h"

namespace millrace {

// Which ops are listed one by one under roofline.ops; the sums by kind always are.
enum class OpList { kNone, kEach };

nlohmann::json PlanReportJson(const PlanReport& report, OpList ops = OpList::kEach);

// concatenated, cast, copied, gathered, reduced, all_reduced bytes and numbers of collectives.
nlohmann::json CountersJson(const PlanCounters& counters);

}  // namespace millrace
