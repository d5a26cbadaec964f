// Bucket pool and arena: pure functions from lifetimes to addresses, one interface.
//
// An item is live during its intervals of the plan's canonical timeline (half-open ranges of
// positions). Two items whose intervals intersect never overlap in bytes. An item has one offset:
// addresses are sticky, the same at every use. `dynamic` alone places each interval by itself.
//
// Units    bytes; offsets are multiples of kArenaAlignment, sizes are rounded up to it.
// Invariants  every allocator: no two live items overlap (VerifyPlacement); lower_bound <=
//             pool_bytes; offset + bytes <= pool_bytes, with equality for some item except where
//             slots are reserved larger than what they hold.
// Errors   an item with no interval, or intervals that are empty, descending or overlapping, or
//          negative bytes: Error(kInternal) with its name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/policies.h"

namespace millrace {

inline constexpr int64_t kArenaAlignment = 256;

struct Interval {
  int64_t begin = 0, end = 0;  // positions [begin, end)
  bool operator==(const Interval&) const = default;
};

struct Item {
  std::string name;  // for messages
  int64_t bytes = 0;
  std::vector<Interval> intervals;  // ascending, disjoint, not empty
  // Which unit the bucket belongs to; -1: none (placed persistently by slot pools).
  int32_t unit = -1;
  DType dtype = DType::kF32;  // slot pools never share a slot between encodings
};

struct PoolOptions {
  AllocatorKind kind = AllocatorKind::kPacked;
  // Copies of each slot: fixed, max_pool. coloured uses as many as the lifetimes ask for.
  int slots = 2;
};

struct Placement {
  std::vector<int64_t> offsets;  // per item; for dynamic: of its first interval
  std::vector<std::vector<int64_t>> interval_offsets;  // dynamic only: per item and interval
  int64_t pool_bytes = 0;
  int64_t lower_bound = 0;         // max over positions of the bytes live there
  std::vector<std::string> notes;  // how it was placed, for `plan`
};

// kDynamic     replay of a best-fit caching allocator over the timeline, as PyTorch's on CUDA: what
//              no cached block fits gets a segment of its own, blocks are split, freed blocks merge
//              within their segment, nothing is returned. pool_bytes is the reserved peak. Each
//              interval has its own address.
// kPersistent  every item has bytes of its own.
// kFixed       units are compared by their ordered list of (dtype, padded bytes); the commonest
//              shape (the first met, when several are) shares `slots` copies, everything else is
//              persistent. (Megatron-FSDP FixedPoolAllocator)
// kMaxPool     per dtype, slot j holds the j-th largest bucket of any unit, `slots` copies of each;
//              non-unit items are persistent. (Megatron-LM #5462, planned with padded sizes and
//              real dtypes)
// kColoured    slots coloured by lifetime, largest first, per dtype; non-unit items are persistent.
// kPacked      byte offsets by lifetime: the best of several orders and of two-ended placement,
//              then improved while it is above the lower bound.
// Errors: more simultaneous lifetimes than `slots` copies (fixed, max_pool): Error(kConfig) naming
// both items, the slot and memory.slots.
Placement PlanPool(const std::vector<Item>& items, const PoolOptions& options);

// max over positions of the sum of bytes (rounded up to the alignment) live there.
int64_t LowerBound(const std::vector<Item>& items);

// Error(kInternal) naming two items that are live together and overlap, or an item whose offset is
// misaligned or outside the pool. Shares no code with the allocators.
void VerifyPlacement(const std::vector<Item>& items, const Placement& placement);

}  // namespace millrace
