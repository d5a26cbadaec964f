// Rules between keys: values that cannot go together. The table of keys.h has already bounded each
// value for itself; keys that can have no effect are idle_keys.h's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config/config.h"

namespace millrace {

// What the configuration is checked against.
struct ConfigContext {
  std::optional<int64_t> world = {};  // ranks; empty: unknown, and rules that need it are left out
  // `execution.backend: cuda` can be honoured. Planning for a GPU elsewhere says true.
  bool has_cuda = false;
  bool auto_is_cpu = false;   // `execution.backend: auto` is known to take the CPU
  bool auto_is_cuda = false;  // and GPUs; both false: not known
  // Another program makes the steps: what the training loop does between them is left to it.
  bool caller_steps = false;
  bool needs_data = true;  // false: tokens come from the caller, and no data is opened
};

// GPUs to a copy of the parameters that gather and reduce over each other's memory, at most.
inline constexpr int64_t kMostPeers = 8;

struct ConfigProblem {
  std::vector<std::string> keys;  // whose values disagree; the first is the one to change
  std::string text;               // what is wrong and what is allowed, without the values of `keys`
};

// All of them, in the order of the documentation. Each key of `config` lies in its range.
std::vector<ConfigProblem> Validate(const Config& config, const ConfigContext& context);

}  // namespace millrace
