// The report for people at a terminal: plain text of at most 100 columns,
// without the ops one by one.
#pragma once

#include <string>

#include "runtime/plan/report/plan_report.h"

namespace millrace {

std::string PlanReportText(const PlanReport& report);

}  // namespace millrace
