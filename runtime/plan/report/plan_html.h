// The report as one page (runtime/picture/page.h): memory map over the step, timeline per stream,
// tables, and a box that filters buffers and ops.
#pragma once

#include <string>

#include "runtime/plan/report/plan_report.h"

namespace millrace {

// `report` is MakePlanReport(input).
std::string PlanHtml(const ReportInput& input, const PlanReport& report);

}  // namespace millrace
