#include "runtime/record/run_files.h"

#include <fmt/core.h>

#include <utility>

#include "runtime/base/error.h"
#include "runtime/record/roll_back_log.h"

namespace millrace {

RunFiles::RunFiles(const Config& config, int64_t step, OldMetrics old, NewestFigures* figures,
                   std::function<void(const std::string&)> warn)
    : config_(config), figures_(figures), warn_(std::move(warn)) {
  Open(step, old);
  if (metrics_->dropped() > 0)
    warn_(fmt::format("{} steps after step {} were not saved: they are trained again",
                      metrics_->dropped(), step));
  if (metrics_->missing() > 0)
    warn_(fmt::format("metrics.jsonl is damaged: it lacks {} of the {} steps that were saved",
                      metrics_->missing(), step));
}

void RunFiles::Open(int64_t step, OldMetrics old) {
  metrics_ = std::make_unique<MetricsFile>(config_.run.dir, step, old);
  if (config_.run.tensorboard)
    events_ = std::make_unique<TensorBoardFile>(config_.run.dir, step, warn_);
}

void RunFiles::OnStepDone(const StepReport& report, const SaveTotals& saves) {
  const std::string said = metrics_->Append(report);
  const bool waits = metrics_->waiting() > 0;
  MR_REQUIRE(ErrorCode::kIo,
             !waits || config_.checkpoint.on_error == CheckpointConfig::OnError::kContinue, "{}",
             said);
  if (!said.empty())
    warn_(said + (waits ? "; training goes on, and its lines wait in memory" : ""));
  if (events_ != nullptr) events_->Append(report.step, ScalarsOf(report));
  if (figures_ != nullptr) figures_->Store(FiguresOf(report, saves));
}

void RunFiles::OnRollBack(const std::vector<RollBack>& made, const std::string& state) {
  LogRollBack(config_.run.dir, made, state);
  Open(made.back().to, OldMetrics::kDropTail);
}

void RunFiles::OnStop() {
  try {
    Sync();
  } catch (const Error& error) {
    warn_(error.what());
  }
}

void RunFiles::OnEnd(const Summary& summary) {
  Sync();
  WriteSummary(config_.run.dir, summary);
}

}  // namespace millrace
