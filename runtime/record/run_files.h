// The files of run.dir that are written as a run goes on: metrics.jsonl, roll_backs.jsonl, event
// files, summary.json; and the newest figures. Rank 0's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/record/metrics.h"
#include "runtime/record/step_figures.h"
#include "runtime/record/step_observer.h"
#include "runtime/record/tensorboard.h"

namespace millrace {

class RunFiles final : public StepObserver {
 public:
  // The run goes on after `step`. Says what became of the lines of an earlier call. `config` and
  // `figures` (null: none) outlive it; `warn` is called from the observer's calls and from Sync.
  RunFiles(const Config& config, int64_t step, OldMetrics old, NewestFigures* figures,
           std::function<void(const std::string&)> warn);

  // Error(kIo) where a line waits for the disk and checkpoint.on_error is stop.
  void OnStepDone(const StepReport& report, const SaveTotals& saves) override;
  // Lines of the steps that are undone go.
  void OnRollBack(const std::vector<RollBack>& made, const std::string& state) override;
  void OnStop() override;
  void OnEnd(const Summary& summary) override;

  // All lines are in the file, durable. Error(kIo). From any thread.
  void Sync() { metrics_->Sync(); }

 private:
  void Open(int64_t step, OldMetrics old);

  const Config& config_;
  NewestFigures* const figures_;
  const std::function<void(const std::string&)> warn_;
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<TensorBoardFile> events_;  // when run.tensorboard asks for them
};

}  // namespace millrace
