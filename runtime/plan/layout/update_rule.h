// How a parameter follows its gradient, and what that keeps between steps: the rule's state slots.
// A new rule is a row of slots here and the ops that it emits in runtime/plan/schedule/update.cc.
#pragma once

#include <string_view>
#include <vector>

#include "runtime/base/dtype.h"

namespace millrace {

enum class UpdateRule { kAdamW };
std::string_view Name(UpdateRule rule);

// A tensor of each flat parameter, [shard_numel] on every rank; gaps are zero, for ever.
struct StateSlot {
  // Names its buffers ("adam_m/h.0") and what checkpoints hold: it stays what it is.
  std::string_view name;
  DType dtype = DType::kF32;
  bool operator==(const StateSlot&) const = default;
};

// The weights themselves.
inline constexpr StateSlot kMasterSlot = {"master", DType::kF32};

// All that a run keeps of a flat parameter between steps: the master weights first, then the slots
// of its rule, which begin as zeros. Of a parameter that is not trained the weights alone.
std::vector<StateSlot> StateSlots(UpdateRule rule, bool trainable = true);

}  // namespace millrace
