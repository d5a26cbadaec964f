// What an option does to a plan, read off its addresses, its order of issue and its edges: walks of
// their own, which share no code with the planner and its allocators. The plan is one that a run
// has executed (Outcome::plan).
#pragma once

#include <cstdint>
#include <string>

#include "runtime/plan/layout/shard_layout.h"
#include "runtime/plan/step_plan.h"
#include "tests/system/run_model.h"

namespace millrace::test {

// Why the addresses of `plan` are not those of the allocator `rule`, as
// runtime/plan/pool/allocator.h words it, for the slots and reduce_depth of `config`; "" when they
// are.
//   persistent  all buckets apart, and the pool their sum
//   fixed       units of the commonest shape take turns in `slots` places, all others are apart
//   max_pool    the j-th largest bucket of each unit takes turns in `slots` places of the size of
//               the largest such
//   coloured    buckets are either at one address or apart, as many addresses as lifetimes ask for
//   dynamic     a best-fit caching allocator, replayed here
//   packed      no pools; the arena is at most 1/32 larger than what is live at once
// Requires sharding.reshard after_forward: blocks that stay gathered take no slot.
std::string AllocatorTrouble(const Config& config, MemoryConfig::Allocator rule,
                             const StepPlan& plan, const ShardLayout& layout);

// Most gathers of one step that have been issued while the first op that reads them has not: this
// one, and those that were prefetched. Downcast after_gather is not for this.
int64_t GatherLead(const StepPlan& plan);

// Addresses that buckets of blocks take turns at.
int64_t BlockBucketAddresses(const StepPlan& plan);

// Of all compute ops that write where a bucket lay whose reduction the same body has issued: the
// fewest reductions that were issued in between, and the most of those that edges let run on beside
// the write. -1: no such op. Not for the allocator `dynamic`.
struct ReductionsBehind {
  int64_t issued = -1, running = -1;
};
ReductionsBehind BehindReusedBuckets(const StepPlan& plan);

// Blocks whose weights stay gathered for the whole step.
int64_t KeptBlocks(const StepPlan& plan, const ShardLayout& layout);

// Addresses, lifetimes, ops, their order and edges; not how the plan will be run, and no notes.
std::string PlacedOps(const StepPlan& plan);

}  // namespace millrace::test
