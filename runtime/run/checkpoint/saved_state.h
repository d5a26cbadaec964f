// The names and the JSON in which a run's state lies in a checkpoint: written by run_saver.h, read
// by run_checkpoint.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/checkpoint/checkpoint_manifest.h"
#include "runtime/exec/step_counters.h"

namespace millrace {

std::string CheckpointRoot(const std::string& run_dir);

// Counters by name, in the order of reports: of one rank in a checkpoint, which a version with
// others reads, too; in summary.json.
nlohmann::ordered_json CountersJson(const StepCounters& counters);

struct SavedCounters {
  StepCounters counters;
  std::vector<std::string> missing;  // of ours, those that were not saved: zero
  std::vector<std::string> unknown;  // saved, and none of ours: left out
};
// From CountersJson of any version, or from the list of ten numbers that versions before names
// saved. Error(kCheckpoint): another kind of list, or a counter that is no integer.
SavedCounters CountersFrom(const nlohmann::json& json);

// The held-out loss of the saved step, where it was evaluated and finite.
std::optional<double> EvalLossOf(const CheckpointManifest& manifest);

}  // namespace millrace
