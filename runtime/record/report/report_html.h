// A run's report as one page: curves of the steps, loads of experts, memory and its map, planned
// and measured timeline, skipped steps, calls, configuration, plan stages, predicted beside
// measured, environment. Self-contained: no network, no other file. The same record gives the same
// bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/picture/step_picture.h"
#include "runtime/record/report/run_record.h"

namespace millrace {

// The training plan of the run's last call, planned again, on one rank (plan_report.h,
// Definitions).
struct PlannedStep {
  struct Class {
    std::string name;
    int64_t most = 0, at_peak = 0;  // bytes
  };
  std::string hash, machine;  // PlanHash; the title of the machine that times are for
  int64_t arena = 0, lower_bound = 0;
  std::vector<Class> classes;
  StepPicture picture;
};

// `planned`: none where this version of the program plans otherwise than the one that trained.
std::string ReportHtml(const RunRecord& record, const std::optional<PlannedStep>& planned);

}  // namespace millrace
