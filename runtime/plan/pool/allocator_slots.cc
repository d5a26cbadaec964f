#include "runtime/plan/pool/allocator_slots.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/plan/pool/allocator_internal.h"

namespace millrace::internal {
namespace {

bool LiveAt(const Item& item, int64_t position) {
  return std::any_of(item.intervals.begin(), item.intervals.end(),
                     [&](const Interval& i) { return i.begin <= position && position < i.end; });
}

// Refuses the first member that begins where too many are live.
[[noreturn]] void ThrowSimultaneous(const std::vector<Item>& items,
                                    const std::vector<int32_t>& members, int copies,
                                    const std::string& slot) {
  for (const int32_t m : members) {
    const Item& item = items[static_cast<size_t>(m)];
    for (const Interval& interval : item.intervals) {
      const Item* other = nullptr;
      int live = 0;
      for (const int32_t o : members) {
        if (!LiveAt(items[static_cast<size_t>(o)], interval.begin)) continue;
        ++live;
        if (o != m && other == nullptr) other = &items[static_cast<size_t>(o)];
      }
      MR_REQUIRE(
          ErrorCode::kConfig, live <= copies,
          "slot {}: '{}' and '{}' are among {} buckets live at once, and there are {} copies; set "
          "memory.slots to at least {}",
          slot, other->name, item.name, live, copies, live);
    }
  }
  MR_FAIL("slot {}: more than {} buckets are live at once, and none of them begins there", slot,
          copies);
}

// Per place in `order`, the earlier places that it is live together with, ascending. None where
// more than `copies` are live at one position: then no assignment exists.
std::optional<std::vector<std::vector<size_t>>> EarlierConflicts(const std::vector<Item>& items,
                                                                 const std::vector<int32_t>& order,
                                                                 int copies) {
  std::vector<Item> members;
  for (const int32_t m : order) {
    members.emplace_back();
    members.back().intervals = items[static_cast<size_t>(m)].intervals;
  }
  std::vector<std::vector<size_t>> earlier(order.size());
  std::vector<size_t> live;  // at most `copies`
  for (const LifetimeEvent& event : LifetimeEvents(members)) {
    const auto k = static_cast<size_t>(event.item);
    if (!event.begin) {
      std::erase(live, k);
      continue;
    }
    for (const size_t other : live) earlier[std::max(k, other)].push_back(std::min(k, other));
    live.push_back(k);
    if (live.size() > static_cast<size_t>(copies)) return std::nullopt;
  }
  for (std::vector<size_t>& places : earlier) {
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
  }
  return earlier;
}

// Depth first over members in order of first use, each to the copies in turn from the one after its
// predecessor's. The first descent is the greedy assignment and nearly always the answer; `steps`
// bounds what follows when it is not.
class CopySearch {
 public:
  CopySearch(std::vector<int32_t> order, std::vector<std::vector<size_t>> earlier, int copies)
      : copies_(copies), order_(std::move(order)), earlier_(std::move(earlier)) {}

  bool Run(int64_t steps) {
    copy_.assign(order_.size(), 0);
    std::vector<int> tried(order_.size() + 1, 0);
    for (size_t k = 0; k < order_.size();) {
      const int start = k == 0 ? 0 : copy_[k - 1] + 1;
      while (tried[k] < copies_ && Taken(k, (start + tried[k]) % copies_)) ++tried[k];
      if (tried[k] < copies_) {
        copy_[k] = (start + tried[k]++) % copies_;
        tried[++k] = 0;
      } else {
        if (stuck_ <= k) stuck_ = k;
        if (k == 0 || --steps < 0) return false;
        --k;
      }
    }
    return true;
  }

  // By place.
  const std::vector<int>& copies() const { return copy_; }
  // The furthest member that found no copy, and one that it is live together with.
  int32_t stuck() const { return order_[stuck_]; }
  int32_t in_the_way() const { return order_[earlier_[stuck_].back()]; }

 private:
  bool Taken(size_t k, int copy) const {
    return std::any_of(earlier_[k].begin(), earlier_[k].end(),
                       [&](size_t e) { return copy_[e] == copy; });
  }

  const int copies_;
  const std::vector<int32_t> order_;  // members in order of first use
  // Per place in the order, the earlier places it may not share a copy with.
  const std::vector<std::vector<size_t>> earlier_;
  std::vector<int> copy_;
  size_t stuck_ = 0;
};

}  // namespace

std::vector<int> AssignCopies(const std::vector<Item>& items, const std::vector<int32_t>& members,
                              int copies, const std::string& slot) {
  MR_REQUIRE(ErrorCode::kConfig, copies >= 1, "memory.slots is {}: slot {} needs at least one copy",
             copies, slot);
  // Places of the members in order of first use, then of index.
  std::vector<size_t> places(members.size());
  std::iota(places.begin(), places.end(), 0);
  const auto first_use = [&](size_t k) {
    return std::pair(items[static_cast<size_t>(members[k])].intervals[0].begin, members[k]);
  };
  std::sort(places.begin(), places.end(),
            [&](size_t a, size_t b) { return first_use(a) < first_use(b); });
  std::vector<int32_t> order;
  for (const size_t k : places) order.push_back(members[k]);
  auto earlier = EarlierConflicts(items, order, copies);
  if (!earlier) ThrowSimultaneous(items, members, copies, slot);
  CopySearch search(std::move(order), std::move(*earlier), copies);
  constexpr int64_t kSteps = 200'000;
  if (!search.Run(kSteps))
    throw Error(
        ErrorCode::kConfig,
        fmt::format("slot {}: '{}' finds no copy beside '{}': a bucket keeps its copy in all its "
                    "lifetimes, and {} copies do not allow that; set memory.slots to at least {}",
                    slot, items[static_cast<size_t>(search.stuck())].name,
                    items[static_cast<size_t>(search.in_the_way())].name, copies, copies + 1));
  std::vector<int> copy_of(members.size());
  for (size_t k = 0; k < places.size(); ++k) copy_of[places[k]] = search.copies()[k];
  return copy_of;
}

void SlotPool::AddSlots(const std::vector<int32_t>& members, const std::vector<int>& copy_of,
                        int copies, int64_t bytes) {
  for (size_t i = 0; i < members.size(); ++i) {
    MR_CHECK_LE(PaddedBytes(items_[static_cast<size_t>(members[i])]), bytes, "'{}' in its slot",
                items_[static_cast<size_t>(members[i])].name);
    placement_.offsets[static_cast<size_t>(members[i])] =
        placement_.pool_bytes + copy_of[i] * bytes;
  }
  placement_.pool_bytes += copies * bytes;
}

void SlotPool::AddPersistent(int32_t item) {
  placement_.offsets[static_cast<size_t>(item)] = placement_.pool_bytes;
  placement_.pool_bytes += PaddedBytes(items_[static_cast<size_t>(item)]);
}

}  // namespace millrace::internal
