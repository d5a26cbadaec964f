#include "runtime/plan/pool/allocator_slots.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/plan/pool/allocator_internal.h"

namespace millrace::internal {
namespace {

bool LiveAt(const Item& item, int64_t position) {
  return std::any_of(item.intervals.begin(), item.intervals.end(),
                     [&](const Interval& i) { return i.begin <= position && position < i.end; });
}

// More members live at one position than there are copies? Then no assignment exists.
void CheckSimultaneous(const std::vector<Item>& items, const std::vector<int32_t>& members,
                       int copies, const std::string& slot) {
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
}

// Depth first over members in order of first use, each to the copies in turn from the one after its
// predecessor's. The first descent is the greedy assignment and nearly always the answer; `steps`
// bounds what follows when it is not.
class CopySearch {
 public:
  CopySearch(const std::vector<Item>& items, const std::vector<int32_t>& members, int copies)
      : copies_(copies) {
    for (const int32_t m : OrderOfFirstUse(items))
      if (std::find(members.begin(), members.end(), m) != members.end()) order_.push_back(m);
    for (size_t k = 0; k < order_.size(); ++k) {
      earlier_.emplace_back();
      for (size_t e = 0; e < k; ++e)
        if (LiveTogether(items[static_cast<size_t>(order_[k])],
                         items[static_cast<size_t>(order_[e])]))
          earlier_.back().push_back(e);
    }
  }

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

  int copy_of(int32_t member) const {
    return copy_[static_cast<size_t>(std::find(order_.begin(), order_.end(), member) -
                                     order_.begin())];
  }
  // The furthest member that found no copy, and one that it is live together with.
  int32_t stuck() const { return order_[stuck_]; }
  int32_t in_the_way() const { return order_[earlier_[stuck_].back()]; }

 private:
  bool Taken(size_t k, int copy) const {
    return std::any_of(earlier_[k].begin(), earlier_[k].end(),
                       [&](size_t e) { return copy_[e] == copy; });
  }

  const int copies_;
  std::vector<int32_t> order_;
  // Per place in the order, the earlier places it may not share a copy with.
  std::vector<std::vector<size_t>> earlier_;
  std::vector<int> copy_;
  size_t stuck_ = 0;
};

}  // namespace

std::vector<int> AssignCopies(const std::vector<Item>& items, const std::vector<int32_t>& members,
                              int copies, const std::string& slot) {
  MR_REQUIRE(ErrorCode::kConfig, copies >= 1, "memory.slots is {}: slot {} needs at least one copy",
             copies, slot);
  CheckSimultaneous(items, members, copies, slot);
  CopySearch search(items, members, copies);
  constexpr int64_t kSteps = 200'000;
  if (!search.Run(kSteps))
    throw Error(
        ErrorCode::kConfig,
        fmt::format("slot {}: '{}' finds no copy beside '{}': a bucket keeps its copy in all its "
                    "lifetimes, and {} copies do not allow that; set memory.slots to at least {}",
                    slot, items[static_cast<size_t>(search.stuck())].name,
                    items[static_cast<size_t>(search.in_the_way())].name, copies, copies + 1));
  std::vector<int> copy_of;
  for (const int32_t m : members) copy_of.push_back(search.copy_of(m));
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
