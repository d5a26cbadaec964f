#include "runtime/exec/agreement/plan_comms.h"

#include <algorithm>
#include <variant>

namespace millrace {
namespace {

void Note(const AllGatherOp<View>&, CommUses& uses) { uses.all_gathers = true; }
void Note(const ReduceScatterOp<View>&, CommUses& uses) { uses.reduce_scatters = true; }
void Note(const AllReduceOp<View>&, CommUses& uses) { uses.all_reduces = true; }
void Note(const AllToAllOp<View>&, CommUses& uses) { uses.all_to_alls = true; }

}  // namespace

std::vector<CommSpec> CommSpecsOf(const std::vector<const StepPlan*>& plans) {
  std::vector<CommSpec> specs;
  const auto uses_of = [&](const CommKey& key) -> CommUses& {
    const auto known = std::find_if(specs.begin(), specs.end(),
                                    [&](const CommSpec& spec) { return spec.key == key; });
    if (known != specs.end()) return known->uses;
    specs.push_back({key, kNoCommUses});
    return specs.back().uses;
  };
  for (const StepPlan* plan : plans)
    for (const Body& body : plan->bodies)
      for (const PlanOp& op : body.ops)
        std::visit(
            [&](const auto& typed) {
              if constexpr (requires { Note(typed, std::declval<CommUses&>()); })
                Note(typed, uses_of({typed.axes, op.stream}));
            },
            op.op);
  return specs;
}

}  // namespace millrace
