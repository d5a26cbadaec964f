#include "runtime/plan/pool/allocator.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "runtime/base/error.h"
#include "runtime/plan/pool/allocator_internal.h"

namespace millrace {
namespace internal {

std::vector<int32_t> OrderOfFirstUse(const std::vector<Item>& items) {
  std::vector<int32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return items[static_cast<size_t>(a)].intervals[0].begin <
           items[static_cast<size_t>(b)].intervals[0].begin;
  });
  return order;
}

std::vector<LifetimeEvent> LifetimeEvents(const std::vector<Item>& items) {
  std::vector<LifetimeEvent> events;
  for (size_t i = 0; i < items.size(); ++i)
    for (size_t k = 0; k < items[i].intervals.size(); ++k)
      for (const bool begin : {false, true}) {
        const Interval& interval = items[i].intervals[k];
        events.push_back({begin ? interval.begin : interval.end, begin, static_cast<int32_t>(i),
                          static_cast<int32_t>(k)});
      }
  std::sort(events.begin(), events.end(), [](const LifetimeEvent& a, const LifetimeEvent& b) {
    return std::tie(a.position, a.begin, a.item) < std::tie(b.position, b.begin, b.item);
  });
  return events;
}

ConflictMatrix::ConflictMatrix(const std::vector<Item>& items)
    : words_((items.size() + 63) / 64), bits_(items.size() * words_) {
  const auto set = [&](int32_t a, int32_t b) {
    bits_[static_cast<size_t>(a) * words_ + static_cast<size_t>(b >> 6)] |= uint64_t{1} << (b & 63);
  };
  std::vector<int32_t> live;
  for (const LifetimeEvent& event : LifetimeEvents(items)) {
    if (event.begin) {
      for (const int32_t other : live) {
        set(event.item, other);
        set(other, event.item);
      }
      live.push_back(event.item);
    } else {
      *std::find(live.begin(), live.end(), event.item) = live.back();
      live.pop_back();
    }
  }
}

}  // namespace internal

namespace {

void CheckItems(const std::vector<Item>& items) {
  for (const Item& item : items) {
    MR_CHECK(item.bytes >= 0, "item '{}' has {} bytes", item.name, item.bytes);
    MR_CHECK(!item.intervals.empty(), "item '{}' is never live: it needs an interval", item.name);
    for (size_t k = 0; k < item.intervals.size(); ++k) {
      const Interval& interval = item.intervals[k];
      MR_CHECK(interval.begin < interval.end, "item '{}' has the empty interval [{}, {})",
               item.name, interval.begin, interval.end);
      MR_CHECK(k == 0 || item.intervals[k - 1].end <= interval.begin,
               "item '{}': intervals [{}, {}) and [{}, {}) are not ascending and disjoint",
               item.name, item.intervals[k - 1].begin, item.intervals[k - 1].end, interval.begin,
               interval.end);
    }
  }
}

Placement Place(const std::vector<Item>& items, const PoolOptions& options, int64_t lower_bound) {
  switch (options.kind) {
    case AllocatorKind::kDynamic:
      return internal::PlaceDynamic(items);
    case AllocatorKind::kPersistent:
      return internal::PlacePersistent(items);
    case AllocatorKind::kFixed:
      return internal::PlaceFixed(items, options.slots);
    case AllocatorKind::kMaxPool:
      return internal::PlaceMaxPool(items, options.slots);
    case AllocatorKind::kColoured:
      return internal::PlaceColoured(items);
    case AllocatorKind::kPacked:
      return internal::PlacePacked(items, lower_bound);
  }
  MR_FAIL("allocator kind {} is none of the six", static_cast<int>(options.kind));
}

}  // namespace

int64_t LowerBound(const std::vector<Item>& items) {
  CheckItems(items);
  int64_t live_bytes = 0, peak_bytes = 0;
  for (const internal::LifetimeEvent& event : internal::LifetimeEvents(items)) {
    const int64_t bytes = internal::PaddedBytes(items[static_cast<size_t>(event.item)]);
    live_bytes += event.begin ? bytes : -bytes;
    peak_bytes = std::max(peak_bytes, live_bytes);
  }
  return peak_bytes;
}

Placement PlanPool(const std::vector<Item>& items, const PoolOptions& options) {
  const int64_t lower_bound = LowerBound(items);  // checks the items
  Placement placement = Place(items, options, lower_bound);
  placement.lower_bound = lower_bound;
  return placement;
}

}  // namespace millrace
