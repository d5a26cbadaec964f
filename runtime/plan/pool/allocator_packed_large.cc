// Packing thousands of items: a step of hundreds of blocks, whose blocks are all alike.
//
// The order of placement matters only around the positions where most bytes are live. Items that
// are live at all of those lie at the bottom of the pool, end to end: they cost their bytes there
// in any packing. What is live at some of them is searched above, as a small problem of its own
// (allocator_packed.cc). What is live at none of them has room to spare, and is put one by one
// where it fits (allocator_occupancy.h). The pool is then as near to its lower bound as the small
// problem's. Where two peaks are about equal, far apart, that may fail; so the orders that do best
// there are tried on all items too, unless the bound is met.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "runtime/plan/pool/allocator_internal.h"
#include "runtime/plan/pool/allocator_occupancy.h"

namespace millrace::internal {
namespace {

// Items that are live at all, at some, or at none of the positions where much is live.
struct Parts {
  std::vector<int32_t> always, sometimes, never;
};

class Splitter {
 public:
  Splitter(const std::vector<Item>& items, const ItemCuts& cuts)
      : cuts_(cuts), count_(items.size()), live_(static_cast<size_t>(cuts.count())) {
    for (size_t i = 0; i < items.size(); ++i)
      for (const auto& [begin, end] : cuts.of(static_cast<int32_t>(i))) {
        live_[static_cast<size_t>(begin)] += PaddedBytes(items[i]);
        live_[static_cast<size_t>(end)] -= PaddedBytes(items[i]);
      }
    std::partial_sum(live_.begin(), live_.end(), live_.begin());
  }

  // By the widest peak for which at most `most` items are live sometimes; nothing where even
  // that of the very top has more.
  std::optional<Parts> Split(size_t most) const {
    std::vector<int64_t> levels = live_;
    std::sort(levels.begin(), levels.end());
    levels.erase(std::unique(levels.begin(), levels.end()), levels.end());
    size_t low = 0, high = levels.size();  // the lowest level that will do is in [low, high]
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (At(levels[middle]).sometimes.size() <= most)
        high = middle;
      else
        low = middle + 1;
    }
    if (high == levels.size()) return std::nullopt;
    return At(levels[high]);
  }

 private:
  // By the positions where `level` bytes or more are live.
  Parts At(int64_t level) const {
    std::vector<int32_t> full(live_.size() + 1);  // stretches before each cut with that many
    for (size_t c = 0; c < live_.size(); ++c) full[c + 1] = full[c] + (live_[c] >= level);
    Parts parts;
    for (size_t i = 0; i < count_; ++i) {
      int32_t covered = 0;
      for (const auto& [begin, end] : cuts_.of(static_cast<int32_t>(i)))
        covered += full[static_cast<size_t>(end)] - full[static_cast<size_t>(begin)];
      auto& part = covered == full.back() ? parts.always
                   : covered > 0          ? parts.sometimes
                                          : parts.never;
      part.push_back(static_cast<int32_t>(i));
    }
    return parts;
  }

  const ItemCuts& cuts_;
  const size_t count_;
  std::vector<int64_t> live_;  // bytes live from each cut to the next
};

class LargePacker {
 public:
  LargePacker(const std::vector<Item>& items, int64_t lower_bound)
      : items_(items), lower_bound_(lower_bound), cuts_(items), taken_(items, cuts_) {
    best_.pool_bytes = std::numeric_limits<int64_t>::max();
  }

  Placement Run() && {
    const auto first_use = OrderOfFirstUse(items_);
    std::vector<int32_t> by_bytes = first_use;
    SortByBytes(by_bytes);
    // In order of worth. Work is counted, not timed, so that the same items have the same addresses
    // on every machine: a second or two for a hundred thousand items.
    const auto goes_on = [&] {
      constexpr int64_t kRunsPerItem = 2000;
      return best_.pool_bytes > lower_bound_ &&
             taken_.looked_at() < kRunsPerItem * static_cast<int64_t>(items_.size());
    };
    const Splitter splitter(items_, cuts_);
    AroundPeak(splitter.Split(1200));
    if (goes_on())
      InOrder(by_bytes, "by bytes, lowest gap", [&](int32_t i) { return taken_.LowestFor(i); });
    if (goes_on())
      InOrder(first_use, "by first use, tightest gap",
              [&](int32_t i) { return taken_.TightestFor(i, lower_bound_); });
    if (goes_on()) AroundPeak(splitter.Split(300));
    return std::move(best_);
  }

 private:
  const Item& item(int32_t i) const { return items_[static_cast<size_t>(i)]; }

  void SortByBytes(std::vector<int32_t>& order) const {
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return PaddedBytes(item(a)) > PaddedBytes(item(b));
    });
  }

  void Begin() {
    taken_.Clear();
    now_ = {};
    now_.offsets.resize(items_.size());
  }
  void Put(int32_t i, int64_t offset) {
    now_.offsets[static_cast<size_t>(i)] = offset;
    now_.pool_bytes = std::max(now_.pool_bytes, offset + PaddedBytes(item(i)));
    taken_.Place(i, offset);
  }
  void End(std::string how) {
    if (now_.pool_bytes >= best_.pool_bytes) return;
    best_ = std::move(now_);
    best_.notes = {std::move(how)};
  }

  template <class Find>
  void InOrder(const std::vector<int32_t>& order, const char* name, Find&& find) {
    Begin();
    for (const int32_t i : order) {
      Put(i, find(i));
      if (now_.pool_bytes >= best_.pool_bytes) return;
    }
    End(fmt::format("packed: {}", name));
  }

  void AroundPeak(std::optional<Parts> parts) {
    if (!parts) return;
    Begin();
    // Alike by alike, each kind nested: what has one live range lies apart from what has one in
    // each microbatch, and the longest at the bottom. As items end, their bytes are free in one
    // piece.
    std::vector<std::tuple<size_t, int64_t, int32_t>> bottom;
    for (const int32_t i : parts->always) {
      int64_t length = 0;
      for (const Interval& live : item(i).intervals) length += live.end - live.begin;
      bottom.emplace_back(item(i).intervals.size(), -length, i);
    }
    std::sort(bottom.begin(), bottom.end());
    for (const auto& [ranges, length, i] : bottom) Put(i, now_.pool_bytes);
    const int64_t base = now_.pool_bytes;
    std::vector<Item> core;
    for (const int32_t i : parts->sometimes) core.push_back(item(i));
    const Placement searched = PlacePacked(core, LowerBound(core));
    for (size_t k = 0; k < core.size(); ++k) Put(parts->sometimes[k], base + searched.offsets[k]);
    SortByBytes(parts->never);
    for (const int32_t i : parts->never) Put(i, taken_.LowestFor(i));
    End(fmt::format("{}, for {} of {} items, around the peak", searched.notes.front(), core.size(),
                    items_.size()));
  }

  const std::vector<Item>& items_;
  const int64_t lower_bound_;
  const ItemCuts cuts_;
  Occupancy taken_;
  Placement now_, best_;
};

}  // namespace

Placement PlacePackedLarge(const std::vector<Item>& items, int64_t lower_bound) {
  return LargePacker(items, lower_bound).Run();
}

}  // namespace millrace::internal
