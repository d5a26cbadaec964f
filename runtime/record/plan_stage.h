// A stage of planning as a run's record has it.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace millrace {

// The stages of planning, in order (the picture in README.md).
inline constexpr std::array<std::string_view, 6> kPlanStageNames = {
    "model_spec", "layout", "semantic_program", "kernel_program", "memory_plan", "schedule"};

// A stage as text. Equal text, equal stage.
struct PlanStage {
  std::string name;
  std::string text;

  std::string Hash() const;  // 32 hex digits
};

}  // namespace millrace
