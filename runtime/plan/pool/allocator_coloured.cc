// Slots coloured by lifetime: per dtype, buckets take turns in a slot when they are never live
// together; largest first, so that the first bucket of a slot sets its size.
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "runtime/plan/pool/allocator_internal.h"
#include "runtime/plan/pool/allocator_slots.h"

namespace millrace::internal {
namespace {

class Slot {
 public:
  explicit Slot(int64_t bytes) : bytes_(bytes) {}

  bool IsFree(const Item& item) const {
    return std::none_of(item.intervals.begin(), item.intervals.end(), [&](const Interval& live) {
      const auto next = After(live.begin);
      return next != taken_.end() && next->begin < live.end;
    });
  }
  void Add(int32_t index, const Item& item) {
    members_.push_back(index);
    for (const Interval& live : item.intervals) taken_.insert(After(live.begin), live);
  }
  const std::vector<int32_t>& members() const { return members_; }
  int64_t bytes() const { return bytes_; }

 private:
  // The first stay that ends behind a position.
  std::vector<Interval>::const_iterator After(int64_t position) const {
    return std::upper_bound(taken_.begin(), taken_.end(), position,
                            [](int64_t at, const Interval& stay) { return at < stay.end; });
  }

  std::vector<int32_t> members_;
  std::vector<Interval> taken_;  // by members, ascending, disjoint
  int64_t bytes_;
};

enum class Choice { kLargestSlot, kSmallestSlot };

// `order` descends in bytes, so every slot that exists is large enough; slots descend too.
std::vector<Slot> Colour(const std::vector<Item>& items, const std::vector<int32_t>& order,
                         Choice choice) {
  std::vector<Slot> slots;
  for (const int32_t i : order) {
    const Item& item = items[static_cast<size_t>(i)];
    const auto is_free = [&](const Slot& slot) { return slot.IsFree(item); };
    Slot* found = nullptr;
    if (choice == Choice::kLargestSlot) {
      const auto slot = std::find_if(slots.begin(), slots.end(), is_free);
      if (slot != slots.end()) found = &*slot;
    } else {
      const auto slot = std::find_if(slots.rbegin(), slots.rend(), is_free);
      if (slot != slots.rend()) found = &*slot;
    }
    if (found == nullptr) found = &slots.emplace_back(PaddedBytes(item));
    found->Add(i, item);
  }
  return slots;
}

int64_t TotalBytes(const std::vector<Slot>& slots) {
  int64_t bytes = 0;
  for (const Slot& slot : slots) bytes += slot.bytes();
  return bytes;
}

}  // namespace

Placement PlaceColoured(const std::vector<Item>& items) {
  std::map<DType, std::vector<int32_t>> buckets;  // in order of first use
  SlotPool pool(items);
  for (const int32_t i : OrderOfFirstUse(items)) {
    const Item& item = items[static_cast<size_t>(i)];
    if (item.unit >= 0) buckets[item.dtype].push_back(i);
  }
  for (auto& [dtype, order] : buckets) {
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return PaddedBytes(items[static_cast<size_t>(a)]) >
             PaddedBytes(items[static_cast<size_t>(b)]);
    });
    std::vector<Slot> slots = Colour(items, order, Choice::kLargestSlot);
    std::vector<Slot> other = Colour(items, order, Choice::kSmallestSlot);
    if (TotalBytes(other) < TotalBytes(slots)) slots = std::move(other);
    for (size_t s = 0; s < slots.size(); ++s) {
      const std::vector<int32_t>& members = slots[s].members();
      pool.AddSlots(members, std::vector<int>(members.size(), 0), 1, slots[s].bytes());
      pool.Note(fmt::format("coloured {}[{}]: {} bytes for {} buckets, the largest '{}'",
                            Name(dtype), s, slots[s].bytes(), members.size(),
                            items[static_cast<size_t>(members[0])].name));
    }
  }
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].unit < 0) pool.AddPersistent(static_cast<int32_t>(i));
  return pool.Take();
}

}  // namespace millrace::internal
