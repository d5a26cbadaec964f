// The sections of a run's report about its step as planned: memory, its map, the timeline beside
// measured ones, figures beside measured ones. What they draw is added to the page's pictures.
#pragma once

#include <optional>
#include <string>

#include "runtime/picture/page.h"
#include "runtime/record/report/report_html.h"

namespace millrace {

std::string MemorySection(const RunRecord& record, const std::optional<PlannedStep>& planned);
std::string MemoryMapSection(const std::optional<PlannedStep>& planned, Page& page);
std::string TimelineSection(const RunRecord& record, const std::optional<PlannedStep>& planned,
                            Page& page);
std::string PredictedSection(const RunRecord& record);

}  // namespace millrace
