#include "runtime/run/prediction.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/run/assemble.h"

namespace millrace {

MfuBasis MfuBasisOf(const Session& session, const Machine& machine) {
  const double peak =
      ShareOf(machine, session.world()).peak(session.run().layout.precision.compute);
  return {
      session.run().flops.causal, session.run().flops.full, peak,
      fmt::format(
          "6*N_matmul + 6*L*T*H*D (full attention: 12) per token; peak {:.0f} GFLOP/s per rank, {}",
          peak / 1e9, machine.title)};
}

PlanReport PredictRun(const Session& session, const Machine& machine, std::string_view name) {
  const AssembledRun& run = session.run();
  const StepPlan& train = run.plans.Of(name);
  int64_t others = 0;
  for (const StepPlan& plan : run.plans.plans)
    if (&plan != &train) others = std::max(others, plan.arena_bytes);
  const StreamJoin join = GraphInForce(session.config()) == GraphMode::kMicrobatch
                              ? StreamJoin::kEveryEntry
                              : StreamJoin::kStepEnd;
  return MakePlanReport(
      {run.spec, run.layout, run.options, train, run.flops, machine, join, others, run.recompute});
}

int64_t PredictGraphLaunches(const Session& session, int64_t steps, bool captured) {
  const bool captures = session.device().captures();
  // Walked eagerly, so that every op can be watched.
  if (session.config().execution.checked) return 0;
  const int64_t replayed = captures && !captured ? std::max<int64_t>(steps - 1, 0) : steps;
  switch (session.config().execution.graph) {
    case GraphMode::kStep:
      return replayed;
    case GraphMode::kMicrobatch:
      return replayed * static_cast<int64_t>(session.run().plans.Of("train").schedule.size());
    case GraphMode::kOff:
      return 0;
  }
  return 0;
}

}  // namespace millrace
