// bench --trace: a measured step of all ranks as a Chrome trace
// (runtime/run/training/step_trace.h), and what its events cost.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/run/session.h"

namespace millrace {

// How a step was traced. Medians are of rank 0.
struct StepTrace {
  bool replay = false;      // of an instrumented graph; else eager
  int64_t event_nodes = 0;  // of the instrumented graphs
  double instrumented_ms = 0, plain_ms = 0;

  nlohmann::ordered_json Json() const;
  std::string Text() const;  // a line
};

// Collective: run_steps(n) runs n steps on every rank and returns the milliseconds of each;
// `plain_ms` is what they took before. Rank 0 writes `path`, whole or not at all. Error(kIo).
StepTrace TraceStep(Session& session, const std::string& path,
                    const std::function<std::vector<double>(int64_t)>& run_steps, double plain_ms);

}  // namespace millrace
