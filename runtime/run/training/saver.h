// The checkpoints of a training run: what a save that fails means, what saves cost, who is told.
//
// Every member function but those that say otherwise is collective.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/record/step_report.h"
#include "runtime/run/checkpoint/run_saver.h"
#include "runtime/run/session.h"

namespace millrace {

// What rank 0 says and does about it.
struct SaverCallbacks {
  std::function<void(int64_t step, const std::string& folder)> on_saved;
  std::function<void(const std::string& warning)> on_warning;
  std::function<void()> before_publishing;  // on the thread of the save
};

class Saver {
 public:
  Saver(Session& session, const RunIdentity& identity, FileSystem& files, SaverCallbacks callbacks);

  // Begins a save; where checkpoint.asynchronous is false, does it. One that fails for the disk's
  // sake, now or later, is a warning, or where checkpoint.on_error says so an error.
  void Save(const RunProgress& progress, std::optional<double> eval_loss);
  // The same, and on return it is published; a failure is an error.
  void SaveLast(const RunProgress& progress, std::optional<double> eval_loss);
  // Waits for a save that is in flight.
  void Settle();
  // The same where the run stops for another reason, which a failed save may not
  // hide: it is said, no error.
  void SettleForStop();

  // As RunSaver's, once a step.
  char Vote() const { return saver_.Vote(); }
  void Hear(std::string_view votes);

  // Since the last call. Not collective.
  SaveFigures TakeFigures();
  const SaveTotals& totals() const { return totals_; }

 private:
  enum class Failure { kByPolicy, kIsAnError, kIsSaid };
  void Begin(const RunProgress& progress, std::optional<double> eval_loss, bool waits,
             Failure failure);
  void Conclude(const std::optional<SaveOutcome>& outcome, Failure failure);

  Session& session_;
  const CheckpointConfig config_;
  const SaverCallbacks callbacks_;
  RunSaver saver_;
  SaveFigures figures_;
  SaveTotals totals_;
};

}  // namespace millrace
