#include "runtime/plan/report/plan_html.h"

#include <nlohmann/json.hpp>

#include "runtime/picture/page.h"
#include "runtime/plan/report/page_assets.h"
#include "runtime/plan/report/plan_json.h"
#include "runtime/plan/report/plan_picture.h"

namespace millrace {

std::string PlanHtml(const ReportInput& input, const PlanReport& report) {
  const std::string machine =
      "Simulated on: " + report.machine.title +
      (report.machine.concurrent_streams ? ". Hatched: compute waits for communication."
                                         : ". Its streams do not overlap.");
  return PageHtml({"Millrace plan",
                   kPlanHeader,
                   kPlanMain,
                   {{"planned", PictureOf(input, report)}},
                   {{Picture::Kind::kMemoryMap, "memory-map", "planned", 0, {}},
                    {Picture::Kind::kTimeline, "timeline", "planned", 0, machine}},
                   PlanReportJson(report, OpList::kNone),
                   kPlanScript});
}

}  // namespace millrace
