#include "runtime/record/plan_stage.h"

#include "runtime/data/hash.h"

namespace millrace {

std::string PlanStage::Hash() const { return Hash128(text); }

}  // namespace millrace
