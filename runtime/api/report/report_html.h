// A run's report as one page: curves of the steps, memory, skipped steps, calls, configuration, plan stages,
// predicted beside measured. Self-contained: no network, no script, no other file. The same record gives the
// same bytes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/api/report/run_record.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// Of the training plan of the run's last call, planned again: bytes of one rank (plan_report.h, Definitions).
struct PlannedMemory {
  std::array<int64_t, kBufferClasses> by_class{}, at_peak{};
  int64_t arena = 0, lower_bound = 0;
};

// `planned`: none where this version of the program plans otherwise than the one that trained.
std::string ReportHtml(const RunRecord& record, const std::optional<PlannedMemory>& planned);

}  // namespace millrace
