// A measured step of all ranks as a Chrome trace: what ran when, on which stream, on one clock.
//
// Step     Where steps are graphs that a device replays: a replay of a graph of its own, with event nodes
//          between the ops (runtime/exec/replay_timer.h). Else an eager step, each op between two events, as
//          bench --ops (runtime/exec/op_timer.h): gaps of a small model are the host's. The trace, and
//          StepTrace, say which, and what the events cost.
// Clock    Ranks of one host share one; between hosts zero is when they left a barrier, tens of microseconds
//          apart. A rank is a process of the trace, a stream a thread.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/api/session.h"

namespace millrace {

// How a step was traced. Medians are of rank 0.
struct StepTrace {
  bool replay = false;      // of an instrumented graph; else eager
  int64_t event_nodes = 0;  // of the instrumented graphs
  double instrumented_ms = 0, plain_ms = 0;

  nlohmann::ordered_json Json() const;
  std::string Text() const;  // a line
};

// Collective: run_steps(n) runs n steps on every rank and returns the milliseconds of each; `plain_ms` is
// what they took before. Rank 0 writes `path`, whole or not at all. Error(kIo).
StepTrace TraceStep(Session& session, const std::string& path,
                    const std::function<std::vector<double>(int64_t)>& run_steps, double plain_ms);

}  // namespace millrace
