// The buffers of a step as items of bucket pools: which PlanPool call gives which of them an
// address. Internal to runtime/plan.
#pragma once

#include <initializer_list>
#include <vector>

#include "runtime/plan/schedule/allocator_table.h"
#include "runtime/plan/schedule/step_builder.h"

namespace millrace {

// Items of one PlanPool call, and the buffers that each stands for.
struct PoolItems {
  std::vector<Item> items;
  std::vector<std::vector<BufferId>> buffers;
};

inline constexpr std::initializer_list<PoolTag> kAnyPool = {PoolTag::kNone, PoolTag::kParam,
                                                            PoolTag::kGrad};

// The measured buffers with one of these tags; states have their addresses already. Stays of one
// bucket are one item, or with `per_stay` one each.
PoolItems ItemsOf(const StepBuilder& b, std::initializer_list<PoolTag> tags, bool per_stay = false);

// A part of the arena that is placed by itself.
struct Stretch {
  PoolItems pool;
  AllocatorKind kind = AllocatorKind::kPacked;
  int slots = 0;
  PoolTag tag = PoolTag::kNone;  // of all its items; kNone: any
};
// All buffers of the plan but states, in the order in which their stretches lie behind these.
// `packed` has one stretch, the others a pool for parameters, one for gradients, and the rest.
std::vector<Stretch> StretchesOf(const StepBuilder& b, AllocatorKind kind);

// Of a step whose buffers have been measured.
AllocatorTable AllocatorTableOf(const StepBuilder& b);

// Ascending and disjoint.
void Normalise(std::vector<Interval>* live);

}  // namespace millrace
