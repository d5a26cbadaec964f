#include "runtime/run/training/saver.h"

#include <fmt/core.h>

#include <chrono>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

SaverOptions OptionsOf(const CheckpointConfig& config, FileSystem& files,
                       const SaverCallbacks& callbacks) {
  SaverOptions options;
  options.asynchronous = config.asynchronous;
  options.keep = {.newest = config.keep, .every = config.keep_every, .best = config.keep_best};
  options.files = &files;
  options.before_publishing = callbacks.before_publishing;
  return options;
}

}  // namespace

Saver::Saver(Session& session, const RunIdentity& identity, FileSystem& files,
             SaverCallbacks callbacks)
    : session_(session),
      config_(session.config().checkpoint),
      callbacks_(std::move(callbacks)),
      saver_(session.engine(), session.config().run.dir, identity,
             OptionsOf(config_, files, callbacks_)) {}

void Saver::Begin(const RunProgress& progress, std::optional<double> eval_loss, bool waits,
                  Failure failure) {
  const PhaseScope phase = session_.Phase(RunPhase::kSaving, progress.step);
  const auto start = Clock::now();
  Settle();
  saver_.Begin(progress, eval_loss, waits ? SaveMode::kNow : SaveMode::kAsConfigured);
  if (waits) Conclude(saver_.Settle(), failure);
  totals_.stall_ms.push_back(
      std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  figures_.stall_ms = figures_.stall_ms.value_or(0) + totals_.stall_ms.back();
}

void Saver::Save(const RunProgress& progress, std::optional<double> eval_loss) {
  Begin(progress, eval_loss, /*waits=*/!config_.asynchronous, Failure::kByPolicy);
}

void Saver::SaveLast(const RunProgress& progress, std::optional<double> eval_loss) {
  Begin(progress, eval_loss, /*waits=*/true, Failure::kIsAnError);
}

void Saver::Settle() { Conclude(saver_.Settle(), Failure::kByPolicy); }

void Saver::SettleForStop() { Conclude(saver_.Settle(), Failure::kIsSaid); }

void Saver::Hear(std::string_view votes) { Conclude(saver_.Hear(votes), Failure::kByPolicy); }

// A full or failing disk need not end a run that can go on: the earlier
// checkpoints are as they were.
void Saver::Conclude(const std::optional<SaveOutcome>& outcome, Failure failure) {
  if (!outcome.has_value()) return;
  const bool leader = session_.rank() == 0;
  const PhaseScope phase(leader ? session_.marks() : nullptr, RunPhase::kReporting);
  if (!outcome->error.has_value()) {
    ++totals_.published;
    totals_.newest = outcome->step;
    totals_.save_ms.push_back(outcome->ms);
    figures_.saved_step = outcome->step;
    figures_.save_ms = outcome->ms;
    if (leader) callbacks_.on_saved(outcome->step, outcome->folder);
    if (leader && !outcome->warning.empty())
      callbacks_.on_warning(fmt::format("step {}: saved; {}", outcome->step, outcome->warning));
    return;
  }
  ++totals_.failed;
  figures_.error = outcome->error->what();
  // kCheckpoint: what the disk gave back when the parts were joined, or what
  // stood in the folder's place.
  const ErrorCode code = outcome->error->code();
  const bool by_disk = code == ErrorCode::kIo || code == ErrorCode::kCheckpoint;
  const bool goes_on = failure == Failure::kByPolicy && by_disk &&
                       config_.on_error == CheckpointConfig::OnError::kContinue;
  if (failure == Failure::kIsSaid) {
    if (leader)
      callbacks_.on_warning(
          fmt::format("step {}: not saved: {}", outcome->step, outcome->error->what()));
    return;
  }
  if (!goes_on)
    throw Error(outcome->error->code(),
                fmt::format("step {}: not saved: {}", outcome->step, outcome->error->what()));
  if (leader)
    callbacks_.on_warning(fmt::format("step {}: not saved: {}; training goes on", outcome->step,
                                      outcome->error->what()));
}

SaveFigures Saver::TakeFigures() { return std::exchange(figures_, {}); }

}  // namespace millrace
