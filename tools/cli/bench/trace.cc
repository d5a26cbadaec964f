#include "tools/cli/bench/trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/quantile.h"
#include "runtime/data/file_system.h"
#include "runtime/run/training/step_trace.h"

namespace millrace {
namespace {

// Steps that are timed as steps, with the events in them, before one is traced.
constexpr int64_t kTimedSteps = 5;
// Eager steps make their events in the first; so do those that a graph was captured for.
constexpr int64_t kFirstSteps = 2;

}  // namespace

nlohmann::ordered_json StepTrace::Json() const {
  return {{"step", replay ? "instrumented replay" : "eager"},
          {"event_nodes", event_nodes},
          {"step_ms_instrumented", instrumented_ms},
          {"step_ms_plain", plain_ms}};
}

std::string StepTrace::Text() const {
  return replay ? fmt::format(
                      "traced an instrumented replay: steps take {:.3f} ms with its {} event "
                      "nodes, {:.3f} ms without",
                      instrumented_ms, event_nodes, plain_ms)
                : fmt::format(
                      "traced an eager step: steps take {:.3f} ms op by op with events, {:.3f} ms "
                      "without",
                      instrumented_ms, plain_ms);
}

StepTrace TraceStep(Session& session, const std::string& path,
                    const std::function<std::vector<double>(int64_t)>& run_steps, double plain_ms) {
  StepTracer tracer(session);
  run_steps(std::max(kFirstSteps, StepTracer::StepsBefore(session)));
  StepTrace traced;
  traced.replay = tracer.replay();
  traced.instrumented_ms = Median(run_steps(kTimedSteps));
  traced.plain_ms = plain_ms;
  tracer.Begin();
  run_steps(1);
  traced.event_nodes = tracer.event_nodes();
  const std::string text = tracer.Text({{"trace", traced.Json()}});
  if (session.rank() == 0) WriteFileAtomically(FileSystem::Posix(), path, text);
  return traced;
}

}  // namespace millrace
