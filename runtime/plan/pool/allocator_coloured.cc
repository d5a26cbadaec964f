// Slots coloured by lifetime: per dtype, buckets take turns in a slot when they are never live
// together; largest first, so that the first bucket of a slot sets its size.
//
// Where nearly all are live together, nearly every slot is taken: a tree over the slots passes over
// all of those that are taken at one time at once.
#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>

#include "runtime/plan/pool/allocator_internal.h"
#include "runtime/plan/pool/allocator_slots.h"

namespace millrace::internal {
namespace {

class Slot {
 public:
  explicit Slot(int64_t bytes) : bytes_(bytes) {}

  // The longest stay.
  Interval longest() const { return longest_; }

  bool IsFree(const Item& item) const {
    return std::none_of(item.intervals.begin(), item.intervals.end(), [&](const Interval& live) {
      const auto next = After(live.begin);
      return next != taken_.end() && next->begin < live.end;
    });
  }
  void Add(int32_t index, const Item& item) {
    members_.push_back(index);
    for (const Interval& live : item.intervals) {
      taken_.insert(After(live.begin), live);
      if (live.end - live.begin > longest_.end - longest_.begin) longest_ = live;
    }
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
  Interval longest_;
  int64_t bytes_;
};

enum class Choice { kLargestSlot, kSmallestSlot };

// Of ranges of slots by halves, a time during which all of them are taken; empty: none is known.
class TakenTree {
 public:
  // For at most `slots`. Those that are not set yet count as taken.
  explicit TakenTree(size_t slots) {
    while (leaves_ < slots) leaves_ *= 2;
    common_.assign(2 * leaves_,
                   {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()});
  }

  void Set(size_t slot, const Interval& taken) {
    size_t node = leaves_ + slot;
    common_[node] = taken;
    while (node /= 2) {
      const Interval &a = common_[2 * node], &b = common_[2 * node + 1];
      common_[node] = {std::max(a.begin, b.begin), std::min(a.end, b.end)};
    }
  }

  // The slot that is met first, from the first or from the last one on, of which `is_free`; of the
  // others only those are asked that are not known to be taken while the item is live. -1: none.
  template <class IsFree>
  int64_t Find(const Item& item, Choice choice, IsFree&& is_free, size_t node = 1) const {
    if (IsLiveIn(item, common_[node])) return -1;
    if (node >= leaves_) return is_free(node - leaves_) ? Index(node) : -1;
    const size_t first = choice == Choice::kLargestSlot ? 2 * node : 2 * node + 1;
    const int64_t found = Find(item, choice, is_free, first);
    return found >= 0 ? found : Find(item, choice, is_free, first ^ 1);
  }

 private:
  int64_t Index(size_t leaf) const { return static_cast<int64_t>(leaf - leaves_); }
  static bool IsLiveIn(const Item& item, const Interval& time) {
    if (time.begin >= time.end) return false;
    const auto next = std::upper_bound(item.intervals.begin(), item.intervals.end(), time.begin,
                                       [](int64_t at, const Interval& i) { return at < i.end; });
    return next != item.intervals.end() && next->begin < time.end;
  }

  size_t leaves_ = 1;
  std::vector<Interval> common_;  // by node: the root is 1, a node's halves are 2n and 2n + 1
};

// `order` descends in bytes, so every slot that exists is large enough; slots descend too.
std::vector<Slot> Colour(const std::vector<Item>& items, const std::vector<int32_t>& order,
                         Choice choice) {
  std::vector<Slot> slots;
  TakenTree taken(order.size());
  for (const int32_t i : order) {
    const Item& item = items[static_cast<size_t>(i)];
    const auto is_free = [&](size_t slot) { return slots[slot].IsFree(item); };
    const int64_t found = taken.Find(item, choice, is_free);
    const size_t slot = found < 0 ? slots.size() : static_cast<size_t>(found);
    if (found < 0) slots.emplace_back(PaddedBytes(item));
    slots[slot].Add(i, item);
    taken.Set(slot, slots[slot].longest());
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
