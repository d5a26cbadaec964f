// What a call of Train has done so far, on one rank: the figures of a step as it ends, and of all
// of them for summary.json. Knows nothing of policies, files and peers.
//
// Roll-backs  Steps that were undone were not done: losses and counters are those of what is left.
//             Their time was spent; it stays in the medians.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/step_scalars.h"
#include "runtime/exec/step_counters.h"
#include "runtime/plan/cost/machine.h"
#include "runtime/record/step_report.h"
#include "runtime/record/summary.h"
#include "runtime/run/prediction.h"
#include "runtime/run/session.h"
#include "runtime/watch/guard.h"

namespace millrace {

// Of the policy gradient of the step that was collected last, over all ranks; none: it has none.
std::optional<PolicyFigures> PolicyFiguresOf(const Engine& engine);

// What the step that was collected last has tallied: routers, policy.
void DescribeTallies(const Engine& engine, StepReport& report);

// Steps that a summary is of, as far as the session does not know it.
struct StepsDone {
  int64_t steps = 0;
  int64_t again = 0;     // of these, those that ran batches again (assemble.h: kAgain)
  int64_t launches = 0;  // of graphs, as predicted
  StepCounters counters_before = {};
  double step_ms = 0;  // the median; NaN: not known
  std::optional<int64_t> peak_bytes = {};
};
// What a summary says of a session whose engine holds the state after these steps: all but the
// result, hashes of the state, plan stages, saves, and times and memory of the process.
Summary SummaryOf(Session& session, const Machine& machine, const StepsDone& done);

// Of the training step that was collected last: pairs without room, by StepPlan::overflows.
std::span<const float> OverflowsOf(const Engine& engine);

class CallRecord {
 public:
  // `session` outlives it. `global_batch`: sequences of a step.
  CallRecord(Session& session, const Machine& machine, int64_t global_batch);

  // The call begins after `step`, when all ranks had seen so many sequences.
  void BeginAfter(int64_t step, int64_t samples);
  // It goes on after the earlier `step`, whose state, counters included, the engine has again.
  void GoBackTo(int64_t step, int64_t samples);

  int64_t first_step() const { return first_step_; }  // where the call began, or was rolled back to
  int64_t last_step() const { return first_step_ + static_cast<int64_t>(losses_.size()); }
  // Sequences that all ranks have seen; the global batch may have been another one before this
  // call.
  int64_t SamplesAfter(int64_t done) const {
    return samples_before_ + (done - first_step_) * global_batch_;
  }

  // The next step is issued while none is in flight.
  void StartsAfresh() { last_collected_ = Clock::now(); }
  // `step` is issued in another way than others, for measuring: not as what was recorded.
  void WalksOtherwise(int64_t step) { otherwise_.push_back(step); }
  // The step (1-based) after last_step() was collected just now: it has run `batch` by `plan`. What
  // a guard thinks of it is left out.
  StepReport Add(const Batch& batch, const StepPlan& plan, double enqueue_us,
                 const StepScalars& scalars);

  // Steps and losses so far.
  void Describe(TrainResult& result) const;
  // Rank 0's, but for hashes, plan stages and saves. `seconds`: of the call.
  Summary Summarize(const TrainResult& result, double seconds);

 private:
  using Clock = std::chrono::steady_clock;

  Session& session_;
  const Machine machine_;
  const MfuBasis basis_;
  const int64_t global_batch_;
  int64_t first_step_ = 0, samples_before_ = 0;
  StepCounters counters_before_;
  bool captured_before_ = false;    // whether the step was recorded by then
  std::vector<int64_t> otherwise_;  // steps that were walked otherwise, since the call began
  std::vector<int64_t> again_;      // steps that ran batches again, likewise
  int64_t dropped_ = 0;             // pairs, of all steps that were collected
  std::vector<double> losses_;      // of steps first_step_ + 1 ... last_step()
  std::vector<double> step_ms_;     // of all steps that were collected
  Clock::time_point last_collected_;
  int64_t peak_bytes_ = 0;
};

}  // namespace millrace
