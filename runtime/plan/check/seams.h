// The seams from plan to plan: which states hold what they should, as the plans of a run follow
// each other in any order, from what each plan says that it reads and defines (StepPlan::seam).
// That a plan's schedules keep to that is proved by the checker (checker.h).
//
// Prologue A plan's prologue runs before its schedule where a state that only prologues make is not
//          valid, or a buffer that the plan carries from step to step.
// Lost     What is made from a state is stale once somebody else writes that state. A plan that
//          lays other bytes over an era ends it: the era's states are lost.
// Shards   Each plan gathers states over the axes along which the layout shards them, the plans of
//          a run that trains nothing too.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/id_vector.h"
#include "runtime/plan/check/violation.h"
#include "runtime/plan/layout/shard_layout.h"
#include "runtime/plan/state_layout.h"

namespace millrace {

// Plans are named by their index in `plans`, which outlive this object as `states` does.
class StateValidity {
 public:
  // Nothing is valid.
  StateValidity(const StateLayout& states, std::vector<const StepPlan*> plans);

  void HostWrites(BufferId state);
  // Nobody has the state's bytes any more, or none of what plans carry from step to step.
  void Lose(BufferId state) { valid_[state] = false; }
  void LoseCarried() { carried_.assign(carried_.size(), false); }
  bool NeedsPrologue(size_t plan) const;
  // The first state that the prologue, or the schedule, reads and that is not valid; none: absent.
  BufferId Missing(size_t plan, bool prologue) const;
  // "the train plan reads the state compute/h.0, which nobody has defined".
  std::string Describe(size_t plan, BufferId missing) const;
  void Ran(size_t plan, bool prologue);

  bool valid(BufferId state) const { return valid_[state]; }
  // Orders what can differ between two moments of one run.
  bool operator<(const StateValidity& other) const {
    return valid_ != other.valid_ ? valid_ < other.valid_ : carried_ < other.carried_;
  }

 private:
  void Write(BufferId state);
  bool IsState(BufferId id) const { return valid_.Has(id); }

  const StateLayout* states_;
  std::vector<const StepPlan*> plans_;
  std::shared_ptr<const std::multimap<BufferId, BufferId>> copies_;  // by what they are made from
  IdVector<BufferId, char> valid_;                                   // states
  std::vector<bool> carried_;     // by plan: what its schedule finds in carried buffers is there
  IdVector<BufferId, int> lost_;  // states: the plan that ran over each, -1 none
};

// Empty: states lie apart, every plan has them where the layout says, and in whatever order the
// host runs the plans and writes weights, each finds what it reads. What plans make for others
// (statistics) the host gets by running those first; a plan that it never can run is a violation.
// In each plan shards lie along the axes that the layout has for them (checker_shards.h).
Violations FindSeamViolations(const RunPlans& run, const ShardLayout& layout, size_t limit = 20);

// Error(kInternal) with the first violations.
void CheckSeams(const RunPlans& run, const ShardLayout& layout);

}  // namespace millrace
