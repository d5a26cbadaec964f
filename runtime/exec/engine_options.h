// How an engine runs its plans.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/base/policies.h"

namespace millrace {

struct EngineOptions {
  GraphMode graph = GraphMode::kStep;
  // Poison freed bytes and find the first non-finite value: every plan is walked op by op, on every
  // device, and `graph` is not used. The same bits.
  bool checked = false;
  std::optional<uint64_t> adversary_seed;  // tests: random order within the plan's edges
  bool releasable = false;                 // Release() can give the arena's memory back
};

}  // namespace millrace
