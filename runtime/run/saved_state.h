// The names and the JSON in which a run's state lies in a checkpoint: written by run_saver.h, read
// by run_checkpoint.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/checkpoint_manifest.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/layout/shard_layout.h"

namespace millrace {

std::string CheckpointRoot(const std::string& run_dir);
// A saved state's blob has its name ("adam_m/h.0"). One that a checkpoint lacks, because an older
// version had no such state, is an error of that name; what is not saved may come and go.
std::string BlobName(std::string_view slot, const std::string& flat);

// Where each parameter lies in the saved shards: all that a reader of another world needs.
nlohmann::ordered_json LayoutJson(const ShardLayout& layout);

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
