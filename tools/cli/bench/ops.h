// Where a step's time goes, by kind of op: measured, beside the least time
// that the cost model allows.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/plan/cost/machine.h"
#include "runtime/run/session.h"

namespace millrace {

struct OpRow {
  std::string kind;
  int64_t count = 0;  // per step
  // Per step, median of the timed steps; on streams that overlap these add up to more than a step.
  double ms = 0;
  double floor_ms = 0;    // by the cost model (runtime/plan/cost/cost_model.h) on this machine
  double flops = 0;       // per step
  double bytes = 0;       // per step: memory read and written
  double wire_bytes = 0;  // per step: sent
};

// Times `steps` eager steps: `run_step` runs one. Longest kinds first.
std::vector<OpRow> TimeOps(Session& session, const Machine& machine, int steps,
                           const std::function<void(int)>& run_step);

nlohmann::ordered_json OpsJson(const std::vector<OpRow>& rows);
std::string OpsText(const std::vector<OpRow>& rows);

}  // namespace millrace
