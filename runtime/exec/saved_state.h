// The names and the JSON in which a run's state lies in a checkpoint: written by run_saver.h, read
// by run_checkpoint.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>

#include "runtime/data/checkpoint_manifest.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/shard_layout.h"

namespace millrace {

inline constexpr std::pair<StateKind, const char*> kSavedKinds[] = {
    {StateKind::kMaster, "master"}, {StateKind::kAdamM, "adam_m"}, {StateKind::kAdamV, "adam_v"}};

std::string CheckpointRoot(const std::string& run_dir);
std::string BlobName(const char* kind, const std::string& flat);

// Where each parameter lies in the saved shards: all that a reader of another world needs.
nlohmann::ordered_json LayoutJson(const ShardLayout& layout);

nlohmann::ordered_json CountersJson(const StepCounters& counters);
StepCounters CountersFrom(
    const nlohmann::json& json);  // Error(kCheckpoint) for another number of them

// The held-out loss of the saved step, where it was evaluated and finite.
std::optional<double> EvalLossOf(const CheckpointManifest& manifest);

}  // namespace millrace
