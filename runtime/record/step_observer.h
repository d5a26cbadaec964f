// Whom the training loop tells what happens: what records a run, shows it, or disturbs it for a
// test. Steps are 1-based. What an observer throws ends the run.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/record/step_report.h"
#include "runtime/record/summary.h"

namespace millrace {

class StepObserver {
 public:
  virtual ~StepObserver() = default;

  // On every rank.
  virtual void OnTokens(int64_t /*step*/, std::span<int32_t>) {}  // its own; may be changed
  virtual void OnIssue(int64_t /*step*/) {}  // is next; once, also where it is run twice
  virtual void OnIssued(int64_t /*step*/) {}

  // On rank 0.
  virtual void OnResume(int64_t /*step*/, const std::string& /*checkpoint*/) {}
  virtual void OnStep(const StepReport&) {}  // before the step's evaluation
  virtual void OnEval(int64_t /*step*/, double /*loss*/) {}
  virtual void OnScores(int64_t /*step*/, const std::vector<EvalScores>&) {}
  virtual void OnStepDone(const StepReport&, const SaveTotals&) {}  // evaluation and saves included
  virtual void OnCheckpoint(int64_t /*step*/, const std::string& /*path*/) {}
  // `made`: of the run, the newest last. `state`: the guard's after it.
  virtual void OnRollBack(const std::vector<RollBack>& /*made*/, const std::string& /*state*/) {}
  virtual void OnStop() {}  // a guard stops the run
  virtual void OnEnd(const Summary&) {}
  virtual void OnWarning(const std::string& /*text*/) {}
};

}  // namespace millrace
