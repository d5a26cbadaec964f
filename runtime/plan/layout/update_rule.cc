#include "runtime/plan/layout/update_rule.h"

namespace millrace {

std::string_view Name(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::kAdamW:
      return "adamw";
  }
  return "?";
}

std::vector<StateSlot> StateSlots(UpdateRule rule, bool trainable) {
  std::vector<StateSlot> slots = {kMasterSlot};
  if (!trainable) return slots;
  switch (rule) {
    case UpdateRule::kAdamW:
      slots.push_back({"adam_m", DType::kF32});
      slots.push_back({"adam_v", DType::kF32});
      break;
  }
  return slots;
}

}  // namespace millrace
