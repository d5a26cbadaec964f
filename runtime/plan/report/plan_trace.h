// The simulated step as a Chrome trace (JSON object format), for Perfetto or chrome://tracing: one
// process (rank 0; plans are equal on all ranks), one thread per stream, flow arrows for the edges
// between streams, and a counter of live bytes by class.
//
// Names  What is not UTF-8 becomes replacement characters.
// Units  ts and dur in microseconds. Events are in order of ts.
#pragma once

#include <string>

#include "runtime/plan/report/plan_report.h"

namespace millrace {

std::string PlanTrace(const ReportInput& input);

}  // namespace millrace
