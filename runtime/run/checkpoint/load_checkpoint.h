// One verified checkpoint into an engine. Which one it is, and what is wrong with others, is
// run_checkpoint.h's.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/run/checkpoint/run_checkpoint.h"

namespace millrace {

// Collective. Values, counters and scalars; what is worth saying is in `changes` of the result.
// Error(kCheckpoint) where the manifest lacks something.
ResumedRun LoadCheckpoint(Engine& engine, const std::string& folder, const RunIdentity& identity);

// Of a manifest's `user`: what was tuned; "" where nothing was.
std::string TuningOf(const nlohmann::json& user);

}  // namespace millrace
