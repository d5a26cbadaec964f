// A plan as its pictures show it, with the times of its simulated schedule.
#pragma once

#include "runtime/picture/step_picture.h"
#include "runtime/plan/report/plan_report.h"

namespace millrace {

// `report` is MakePlanReport(input).
StepPicture PictureOf(const ReportInput& input, const PlanReport& report);

}  // namespace millrace
