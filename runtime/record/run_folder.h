// What a run left in run.dir, read back: metrics.jsonl, summary.json, config.json. For looking at a
// run, also one that goes on or was killed; nothing is changed.
//
// Errors   kData: not a run's folder, or metrics.jsonl (named with its line) or summary.json is
//          damaged. kIo: the machine.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/record/run_history.h"

namespace millrace {

// In a run's folder: a step of which every op was timed (step_trace.h).
inline constexpr const char* kTimelineName = "timeline.json";

struct MetricsLine {
  float loss = 0;       // bit for bit what loss_bits says
  float grad_norm = 0;  // the nearest float to the number; NaN where it was not finite
  std::optional<float> eval_loss;
  std::string offender;  // why the update was skipped: what was not finite, a spike; else ""
  // Roll-backs to the step before this one: the step that each came from, and why.
  std::vector<std::pair<int64_t, std::string>> rolled_back = {};
};

struct RecordedMetrics {
  std::map<int64_t, MetricsLine> steps;
  int64_t repeated = 0;  // lines of a step that a later line replaces
  bool torn = false;     // the last line is not whole: the run was killed, or is writing it
};

// Of a run's end, in summary.json: the state that it left, the plan and the
// algorithms that it ended with.
inline constexpr std::array<std::string_view, 4> kFinalHashNames = {"param_hash", "optimizer_hash",
                                                                    "plan_hash", "tuning_hash"};

struct RecordedSummary {
  int64_t last_step = 0;
  // By kFinalHashNames; "" where there is nothing to hash.
  std::map<std::string, std::string> hashes;
  std::map<std::string, std::string> plan_stages;  // of its last call
};

struct RecordedRun {
  RecordedMetrics metrics;
  std::optional<RecordedSummary> summary;  // none: the run goes on, or did not end in good order
  RunHistory history;           // empty: there is no config.json, or not one that a run wrote
  std::string history_problem;  // what is wrong with that file
};

RecordedMetrics ParseMetrics(std::string_view text, const std::string& path);
RecordedRun ReadRunFolder(const std::string& run_dir);

}  // namespace millrace
