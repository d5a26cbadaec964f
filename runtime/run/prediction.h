// What the plan says about a run before it begins: the figures of `millrace plan` for a session's
// own plans, and what MFU is measured against.
#pragma once

#include <string>
#include <string_view>

#include "runtime/plan/cost/machine.h"
#include "runtime/plan/report/plan_report.h"
#include "runtime/run/session.h"

namespace millrace {

// Peak rate that MFU is measured against, and where it comes from.
struct MfuBasis {
  double flops_per_token = 0;       // model FLOPs, forward and backward, causal attention
  double flops_per_token_full = 0;  // the same with attention counted over the whole square
  double peak_flops_per_rank = 0;   // 0: MFU is not reported
  std::string text;                 // the formula and the peak, for people
};

// `machine` is not yet shared between the ranks, as FindMachine gives it.
MfuBasis MfuBasisOf(const Session& session, const Machine& machine);

// Of the session's training plan, or another step of training; its memory.run_arena is what the
// engine allocates for all plans of the session.
PlanReport PredictRun(const Session& session, const Machine& machine,
                      std::string_view plan = "train");

// Launches of recorded work in `steps` training steps of a session; 0 when they are walked eagerly.
// A device that captures issues the first step itself, unless it was `captured` before these.
int64_t PredictGraphLaunches(const Session& session, int64_t steps, bool captured);

}  // namespace millrace
