// What the allocators share; not for others. Each Place* is one AllocatorKind of allocator.h, in
// allocator_<kind>.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/plan/pool/allocator.h"

namespace millrace::internal {

// Each fills offsets, pool_bytes and notes (dynamic: interval_offsets too); PlanPool adds the lower
// bound. Items are valid.
Placement PlaceDynamic(const std::vector<Item>& items);
Placement PlacePersistent(const std::vector<Item>& items);
Placement PlaceFixed(const std::vector<Item>& items, int slots);
Placement PlaceMaxPool(const std::vector<Item>& items, int slots);
Placement PlaceColoured(const std::vector<Item>& items);
Placement PlacePacked(const std::vector<Item>& items, int64_t lower_bound);
// Of kPacked, for more items than PlacePacked searches: work and memory grow with their number, not
// with its square.
Placement PlacePackedLarge(const std::vector<Item>& items, int64_t lower_bound);

inline int64_t PaddedBytes(const Item& item) {
  return (item.bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// Indices of `items` in order of first use, then of index.
std::vector<int32_t> OrderOfFirstUse(const std::vector<Item>& items);

// One end of an interval. In order of position; at one position ends come before begins (intervals
// are half-open), then items by index.
struct LifetimeEvent {
  int64_t position;
  bool begin;
  int32_t item;
  int32_t interval;
};
std::vector<LifetimeEvent> LifetimeEvents(const std::vector<Item>& items);

// Who is live together with whom: n rows of n bits. An item is not in conflict with itself.
class ConflictMatrix {
 public:
  explicit ConflictMatrix(const std::vector<Item>& items);
  const uint64_t* row(int32_t item) const { return &bits_[static_cast<size_t>(item) * words_]; }
  size_t words() const { return words_; }
  static bool Test(const uint64_t* row, int32_t other) {
    return (row[other >> 6] >> (other & 63)) & 1;
  }
  bool operator()(int32_t a, int32_t b) const { return Test(row(a), b); }

 private:
  size_t words_;
  std::vector<uint64_t> bits_;
};

}  // namespace millrace::internal
