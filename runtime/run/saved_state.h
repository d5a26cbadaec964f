// The names and the JSON in which a run's state lies in a checkpoint: written by run_saver.h, read
// by run_checkpoint.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/checkpoint_manifest.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/layout/shard_layout.h"

namespace millrace {

inline constexpr std::pair<StateKind, const char*> kSavedKinds[] = {
    {StateKind::kMaster, "master"}, {StateKind::kAdamM, "adam_m"}, {StateKind::kAdamV, "adam_v"}};

std::string CheckpointRoot(const std::string& run_dir);
std::string BlobName(const char* kind, const std::string& flat);

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
