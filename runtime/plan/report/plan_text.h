// The report for people at a terminal: plain text of at most 100 columns,
// without the ops one by one.
#pragma once

#include <string>

#include "runtime/plan/report/plan_report.h"

namespace millrace {

std::string PlanReportText(const PlanReport& report);

// "1.50 GiB", "12.0 MiB", "640 B".
std::string BytesText(int64_t bytes);
// "1.20 ms", "35.0 us", "2.10 s".
std::string SecondsText(double seconds);
// "1.24 G", "56.2 M", "640".
std::string CountText(double count);

}  // namespace millrace
