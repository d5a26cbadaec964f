// What each allocator needs for one training step, beside what none can do without.
//
// Which buffers there are and when they live does not depend on the allocator, so one draft of the
// step serves all. `arena` is what a plan with that allocator has, to the byte.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/schedule/planner.h"

namespace millrace {

struct AllocatorBytes {
  int64_t parameters = 0;  // buckets of gathered weights, placed by themselves
  int64_t gradients = 0;   // buckets of gradients, placed by themselves
  // Of one rank. `packed` places buckets and activations together, others each pool by itself.
  int64_t arena = 0;
  bool operator==(const AllocatorBytes&) const = default;
};

struct AllocatorRow {
  AllocatorKind kind = AllocatorKind::kPacked;
  AllocatorBytes bytes;
};

struct AllocatorTable {
  AllocatorBytes lower_bound;      // the most bytes that live at one time
  std::vector<AllocatorRow> rows;  // every allocator, the default last
};

// `reshard`: by UnitId, as StepPlan::reshard; none is kAuto. The budget is not looked at.
// Errors: PlanPool's.
AllocatorTable CompareAllocators(const ShardLayout& layout, const StateLayout& states,
                                 const Program& program, const PlanOptions& options,
                                 const std::vector<Reshard>& reshard);

}  // namespace millrace
