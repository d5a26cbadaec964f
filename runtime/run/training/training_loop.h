// One run of the training loop, on one rank. training.cc has the steps, training_call.cc what is
// around them: where a call begins, goes back and ends.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/record/run_files.h"
#include "runtime/run/data/data_check.h"
#include "runtime/run/eval/score_tasks.h"
#include "runtime/run/training/call_record.h"
#include "runtime/run/training/saver.h"
#include "runtime/run/training/step_trace.h"
#include "runtime/run/training/training.h"
#include "runtime/watch/guard.h"

namespace millrace {

class TrainingLoop {
 public:
  TrainingLoop(Session& session, const TrainOptions& options, const std::atomic<bool>& stop,
               const std::vector<StepObserver*>& observers);

  TrainResult Run();

 private:
  // A step that is in flight.
  struct Waiting {
    Batch batch;
    int64_t drawn = 0;  // Guard::Drawn of its step
    double enqueue_us = 0;
  };
  // What follows a step: the held-out loss, the scores of eval.tasks.
  struct Due {
    bool loss = false, scores = false;
  };

  // training_call.cc
  void Begin();
  DataCheck CheckFiles();
  void BeginRecord(const std::optional<ResumedRun>& resumed, const RunEnvironment& environment);
  std::optional<ResumedRun> Resume(ResumePolicy policy);
  void RestoreGuard(std::string state);
  int64_t GoBack();
  void Finish(double seconds);
  SaverCallbacks CallbacksOfSaver();

  // training.cc
  void DoStep(int64_t done);
  void Save(int64_t done);
  std::vector<int32_t> TokensOf(const Batch& batch);
  const StepPlan& PlanOf(const Batch& batch) const;
  void Enqueue(int64_t step, bool twice);
  bool StopAgreed(int64_t done, bool saves);
  void CollectDownTo(int left, const Due& due);
  StepReport ReportOf(const Waiting& waiting, const StepScalars& scalars, GuardAction action);
  void Evaluate(StepReport& report);
  void ScoreTasks(StepReport& report);
  void FinishTrace(int64_t done);
  [[noreturn]] void Stop(const std::string& why);

  bool leader() const { return session_.rank() == 0; }
  RunProgress ProgressAt(int64_t done) const {
    return {done, record_.SamplesAfter(done), guard_.State(),
            session_.DataState(guard_.Drawn(done))};
  }

  // For the logs: what every rank does.
  template <class... Args>
  void Note(LogLevel level, fmt::format_string<Args...> text, Args&&... args) {
    Log& log = session_.log();
    if (log.Wants(level))
      log.Write(level, LogScope::kAllRanks, fmt::format(text, std::forward<Args>(args)...));
  }

  // Tells this rank's observers.
  template <class... Parameters, class... Args>
  void Tell(void (StepObserver::*event)(Parameters...), const Args&... args) {
    for (StepObserver* const observer : observers_) (observer->*event)(args...);
  }
  // Tells rank 0's.
  template <class... Parameters, class... Args>
  void Report(void (StepObserver::*event)(Parameters...), const Args&... args) {
    if (!leader()) return;
    const PhaseScope phase = session_.Phase(RunPhase::kReporting);
    Tell(event, args...);
  }
  void Warn(const std::string& text) { Report(&StepObserver::OnWarning, text); }

  Session& session_;
  const Config& config_;
  const TrainOptions& options_;
  Guard guard_;
  std::optional<RollBack> bad_;  // a step was collected whose numbers ask for a roll-back
  const std::atomic<bool>& stop_;
  std::vector<StepObserver*> observers_;
  const RunIdentity identity_;
  const std::vector<OpenTask> tasks_;
  CallRecord record_;
  std::unique_ptr<RunFiles> files_;  // rank 0's, the last of its observers
  TracedStep trace_;
  std::vector<PlanStage> plan_stages_;  // rank 0
  // Steps that are still in flight when the next one is issued: the device never waits for the host
  // to look at a loss. On a host device a step has run when it was issued.
  const int lag_;
  std::deque<Waiting> waiting_;
  int64_t evaluated_ = 0;  // the last step that was
  TrainResult result_;
  std::unique_ptr<Saver> saver_;  // after what its thread uses
};

}  // namespace millrace
