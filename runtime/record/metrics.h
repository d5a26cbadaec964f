// metrics.jsonl, a line per step. Rank 0 writes it.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/data/file_system.h"
#include "runtime/data/jsonl_appender.h"
#include "runtime/record/step_figures.h"
#include "runtime/record/step_report.h"
#include "runtime/record/tensorboard.h"

namespace millrace {

// What becomes of lines that an earlier run left beyond the step that this one goes on from.
enum class OldMetrics {
  kDropTail,  // the same run, trained again from its last checkpoint: the lines come again
  // Another run, which begins anew in the same folder: the file becomes metrics.old-<n>.jsonl, and
  // summary.json, timeline.json, config.json, restarts.jsonl, roll_backs.jsonl and the folder
  // tensorboard follow it.
  kSetAside
};

// metrics.jsonl of a call.
//
// Full disk  Lines that it does not take wait in memory and are written before the next one, in
//            order; the caller decides whether to go on.
// Threads    Append from one, Sync from any.
class MetricsFile {
 public:
  // `files` outlives it.
  MetricsFile(const std::string& run_dir, int64_t resume_step, OldMetrics old,
              FileSystem& files = FileSystem::Posix());
  // The line of a step. Returns what is worth saying: why lines begin to wait, or that those that
  // waited are written; else "". Error(kIo) when kMostWaiting lines wait.
  std::string Append(const StepReport& report);
  static constexpr size_t kMostWaiting = size_t{1} << 16;
  // Lines that are not in the file.
  size_t waiting() const;
  // The file holds all lines, durable. Error(kIo).
  void Sync();
  // Steps whose lines were dropped because they were not saved.
  int64_t dropped() const { return dropped_; }
  // Steps that were saved, but have no line in the file that was there.
  int64_t missing() const { return missing_; }

 private:
  void WriteWaiting();  // mutex_ is held; Error(kIo)

  int64_t dropped_ = 0, missing_ = 0;
  JsonlAppender lines_;
  mutable std::mutex mutex_;  // of waiting_, and of appending
  std::deque<std::string> waiting_;
};

// The numbers of a line of metrics.jsonl that are worth a curve, under the same names.
std::vector<EventScalar> ScalarsOf(const StepReport& report);

// The numbers of a line, and of the saves until then, for NewestFigures.
StepFigures FiguresOf(const StepReport& report, const SaveTotals& saves);

// "0x3f9d70a4": the bits of the float32 nearest to `value`.
std::string Float32Bits(double value);

}  // namespace millrace
