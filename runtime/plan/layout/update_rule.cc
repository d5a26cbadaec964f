#include "runtime/plan/layout/update_rule.h"

namespace millrace {

std::string_view Name(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::kAdamW:
      return "adamw";
    case UpdateRule::kBalance:
      return "balance";
    case UpdateRule::kMuon:
      return "muon";
  }
  return "?";
}

std::vector<StateSlot> StateSlots(UpdateRule rule, bool trainable, DType moments) {
  std::vector<StateSlot> slots = {kMasterSlot};
  if (!trainable) return slots;
  switch (rule) {
    case UpdateRule::kAdamW:
      slots.push_back({"adam_m", moments});
      slots.push_back({"adam_v", moments});
      break;
    case UpdateRule::kBalance:
      break;
    case UpdateRule::kMuon:
      slots.push_back({"muon_m", DType::kF32});
      break;
  }
  return slots;
}

}  // namespace millrace
