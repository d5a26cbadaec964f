// All that a run's folder tells, as one value: what a report shows. For looking at a run, also one
// that goes on or was killed; nothing is changed.
//
// Units    bytes and ms as in metrics.jsonl and summary.json (runtime/run/README.md). NaN: not
//          recorded, or recorded as null because it was not finite.
// Errors   As ReadRunFolder (run_folder.h): kData where the folder is no run's or a file of it is
//          damaged.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/checkpoint/checkpoint_store.h"
#include "runtime/data/restart_log.h"
#include "runtime/record/report/recorded_timeline.h"
#include "runtime/record/run_folder.h"

namespace millrace {

// A line of metrics.jsonl.
struct StepRow {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  int64_t step = 0;
  double loss = kUnknown, grad_norm = kUnknown, lr = kUnknown, tokens = kUnknown,
         step_ms = kUnknown;
  double tokens_per_s = kUnknown, mfu = kUnknown, peak_bytes = kUnknown;
  double save_stall_ms = kUnknown;  // before this step
  bool save_failed = false;
  std::optional<double> eval_loss;
  // Of blocks with experts: the largest max_load, the smallest entropy.
  double max_load = kUnknown, router_entropy = kUnknown;
  // By block, the load of each expert, where the line has them.
  std::vector<std::pair<std::string, std::vector<double>>> loads;
  double dropped_pairs = kUnknown;                       // of all of them
  double loss_scale = kUnknown, scale_downs = kUnknown;  // of fp16; scale_downs: so far
  bool balanced_gate = false;                            // a fixed pattern chose the experts
  bool again = false;           // a batch that an earlier step had no room for
  int64_t waiting_batches = 0;  // such batches that have not run again
  std::string offender;         // why the update was skipped; "" where it was applied
  // Steps whose numbers made the run go back to the step before this one, and
  // what was wrong with them.
  std::vector<std::pair<int64_t, std::string>> rolled_back;
};

// A source that the run blends (data.sources), as of the last lines that tell of it.
struct SourceRow {
  std::string name;
  double samples = StepRow::kUnknown, epochs = StepRow::kUnknown, eval_loss = StepRow::kUnknown;
};

// The newest value of a metric in an evaluation task (eval.tasks).
struct ScoreValue {
  std::string task, metric;
  double value = StepRow::kUnknown;
  int64_t step = 0;
};

struct RunRecord {
  std::string dir;            // as it was named
  std::vector<StepRow> rows;  // by rising step; the last line of a step that has several
  std::vector<SourceRow> sources;
  std::vector<ScoreValue> scores;
  bool torn = false;  // the last line is cut off
  RunHistory history;
  std::string history_problem;
  nlohmann::json summary;                    // null: there is none
  std::vector<CheckpointEntry> checkpoints;  // newest first
  std::string checkpoints_problem;           // why they could not be listed
  std::vector<RecordedFailure> failures;     // that a supervisor has seen
  std::optional<RecordedTimeline> timeline;  // none: no step was timed op by op
  std::string timeline_problem;              // what is wrong with that file
};

RunRecord ReadRunRecord(const std::string& run_dir);

// A value of summary.json by its path; null where there is none.
const nlohmann::json& At(const nlohmann::json& object, std::initializer_list<const char*> path);
std::string TextOf(const nlohmann::json& value);
double NumberOf(const nlohmann::json& value);  // NaN: no number

// As the page writes them.
std::string NumberText(double value);
std::string KnownBytes(double value);
std::string Milliseconds(double value);

}  // namespace millrace
