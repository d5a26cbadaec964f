// The report as one page: memory map over the step, timeline per stream, tables, and a box that
// filters buffers and ops. Self-contained: no network, no other file; the plan is embedded as JSON,
// drawn on canvas by page/page.js. What of a name is not UTF-8 becomes replacement characters.
#pragma once

#include <string>

#include "runtime/plan/report/plan_report.h"

namespace millrace {

// `report` is MakePlanReport(input).
std::string PlanHtml(const ReportInput& input, const PlanReport& report);

}  // namespace millrace
