// A run's report as one page: curves of the steps, memory and its map, planned and
// measured timeline, skipped steps, calls, configuration, plan stages, predicted beside
// measured, environment. Self-contained: no network, no script, no other file. The same
// record gives the same bytes.
#pragma once

#include <optional>
#include <string>

#include "runtime/record/report/planned_step.h"
#include "runtime/record/report/run_record.h"

namespace millrace {

// `planned`: none where this version of the program plans otherwise than the one that trained.
std::string ReportHtml(const RunRecord& record, const std::optional<PlannedStep>& planned);

}  // namespace millrace
