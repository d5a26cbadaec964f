// Byte offsets by lifetime: the smallest pool over several orders of placement, then improved while
// it is above the lower bound. For thousands of items see allocator_packed_large.cc.
//
// Minimal packing is NP-hard (dynamic storage allocation), but training steps are kind: lifetimes
// nest, neighbours meet in pairs, and one of the orders below usually reaches the lower bound,
// where the search stops. The work is bounded by counts, never by time, so that the same items have
// the same addresses on every machine.
#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "runtime/base/philox.h"
#include "runtime/plan/pool/allocator_internal.h"

namespace millrace::internal {
namespace {

enum class Fit { kLowest, kTightest };

// What to place, in which order, and where: an item that is `from_top` goes to the highest gap
// below the lower bound if there is one.
struct Recipe {
  const char* name;
  std::vector<int32_t> order;
  Fit fit = Fit::kLowest;
  std::vector<bool> from_top;  // empty: none
};

class Packer {
 public:
  Packer(const std::vector<Item>& items, int64_t lower_bound)
      : items_(items), conflicts_(items), cap_(lower_bound) {
    for (const Item& item : items) bytes_.push_back(PaddedBytes(item));
  }

  // Offsets by the recipe and the pool's size, or nothing if that would reach `limit`.
  struct Result {
    std::vector<int64_t> offsets;
    int64_t pool_bytes = 0;
  };
  std::optional<Result> Pack(const Recipe& recipe, int64_t limit);

  int64_t bytes(int32_t item) const { return bytes_[static_cast<size_t>(item)]; }

 private:
  struct Placed {
    int64_t offset, end;
    int32_t item;
  };
  int64_t FindOffset(int32_t item, Fit fit, bool from_top) const;

  const std::vector<Item>& items_;
  const ConflictMatrix conflicts_;
  const int64_t cap_;
  std::vector<int64_t> bytes_;
  std::vector<Placed> placed_;  // by offset
};

// Walks the gaps between the placed items that are live together with this one, lowest first. The
// last gap is open above; below the cap it counts as one that ends there.
int64_t Packer::FindOffset(int32_t item, Fit fit, bool from_top) const {
  const int64_t bytes = this->bytes(item);
  const uint64_t* row = conflicts_.row(item);
  int64_t bottom = 0;  // of the present gap
  int64_t best = -1, best_gap = std::numeric_limits<int64_t>::max();
  const auto consider = [&](int64_t gap_begin, int64_t gap_end) {
    const int64_t gap = gap_end - gap_begin;
    if (gap < bytes) return;
    if (from_top) {
      best = gap_end - bytes;
    } else if (gap < best_gap) {
      best = gap_begin;
      best_gap = gap;
    }
  };
  // Which items are live together cannot be foretold, and gaps are rare: so the one branch is for
  // gaps. Half of planning is here: no reference to `bottom` keeps it out of a register.
  for (const Placed& other : placed_) {
    const int64_t live = -int64_t{ConflictMatrix::Test(row, other.item)};  // all bits, or none
    if ((other.offset & live) > bottom) {
      consider(bottom, from_top ? std::min(other.offset, cap_) : other.offset);
      if (best >= 0 && fit == Fit::kLowest && !from_top) return best;
    }
    const int64_t end = other.end & live;
    bottom = end > bottom ? end : bottom;
  }
  consider(bottom, cap_);
  return best >= 0 ? best : bottom;
}

std::optional<Packer::Result> Packer::Pack(const Recipe& recipe, int64_t limit) {
  placed_.clear();
  Result result;
  result.offsets.resize(items_.size(), 0);
  for (const int32_t item : recipe.order) {
    if (bytes(item) == 0) continue;
    const bool from_top = !recipe.from_top.empty() && recipe.from_top[static_cast<size_t>(item)];
    const int64_t offset = FindOffset(item, recipe.fit, from_top);
    const int64_t end = offset + bytes(item);
    if (end >= limit) return std::nullopt;
    result.pool_bytes = std::max(result.pool_bytes, end);
    result.offsets[static_cast<size_t>(item)] = offset;
    const auto above = std::upper_bound(placed_.begin(), placed_.end(), offset,
                                        [](int64_t at, const Placed& p) { return at < p.offset; });
    placed_.insert(above, {offset, end, item});
  }
  return result;
}

// Positions live, over all intervals.
int64_t LiveLength(const Item& item) {
  int64_t length = 0;
  for (const Interval& interval : item.intervals) length += interval.end - interval.begin;
  return length;
}

// Per item, the most bytes that are live while it is.
std::vector<int64_t> Pressure(const std::vector<Item>& items) {
  const std::vector<LifetimeEvent> events = LifetimeEvents(items);
  std::vector<int64_t> pressure(items.size(), 0);
  std::vector<int32_t> live;
  int64_t live_bytes = 0;
  for (size_t e = 0; e < events.size(); ++e) {
    const int32_t item = events[e].item;
    const int64_t bytes = PaddedBytes(items[static_cast<size_t>(item)]);
    if (events[e].begin) {
      live.push_back(item);
      live_bytes += bytes;
      // The peaks of the sum are where begins are followed by an end.
      if (e + 1 < events.size() && events[e + 1].begin) continue;
      for (const int32_t other : live)
        pressure[static_cast<size_t>(other)] =
            std::max(pressure[static_cast<size_t>(other)], live_bytes);
    } else {
      *std::find(live.begin(), live.end(), item) = live.back();
      live.pop_back();
      live_bytes -= bytes;
    }
  }
  return pressure;
}

// Descending by key; ties in order of first use.
template <class Key>
std::vector<int32_t> DescendingBy(const std::vector<int32_t>& first_use, const Key& key) {
  std::vector<int32_t> order = first_use;
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return key(a) > key(b); });
  return order;
}

std::vector<Recipe> Recipes(const std::vector<Item>& items) {
  const std::vector<int32_t> first_use = OrderOfFirstUse(items);
  const std::vector<int64_t> pressure = Pressure(items);
  const auto item = [&](int32_t i) -> const Item& { return items[static_cast<size_t>(i)]; };
  const auto bytes = [&](int32_t i) { return PaddedBytes(item(i)); };
  const auto length = [&](int32_t i) { return LiveLength(item(i)); };

  std::vector<bool> odd_unit(items.size()), below_median_length(items.size());
  std::vector<int64_t> lengths;
  for (const Item& it : items) lengths.push_back(LiveLength(it));
  if (!lengths.empty())
    std::nth_element(lengths.begin(), lengths.begin() + static_cast<int64_t>(lengths.size()) / 2,
                     lengths.end());
  for (size_t i = 0; i < items.size(); ++i) {
    odd_unit[i] = items[i].unit >= 0 && items[i].unit % 2 == 1;
    below_median_length[i] = LiveLength(items[i]) < lengths[lengths.size() / 2];
  }

  const std::vector<int32_t> by_bytes = DescendingBy(first_use, bytes);
  const std::vector<int32_t> by_pressure = DescendingBy(
      first_use, [&](int32_t i) { return std::pair(pressure[static_cast<size_t>(i)], bytes(i)); });
  const std::vector<int32_t> by_length =
      DescendingBy(first_use, [&](int32_t i) { return std::pair(length(i), bytes(i)); });
  const std::vector<int32_t> by_area = DescendingBy(first_use, [&](int32_t i) {
    return static_cast<double>(bytes(i)) * static_cast<double>(length(i));
  });
  return {
      {"even units from the bottom, odd from the top", first_use, Fit::kLowest, odd_unit},
      {"by pressure, lowest gap", by_pressure, Fit::kLowest, {}},
      {"by length, lowest gap", by_length, Fit::kLowest, {}},
      {"by bytes, tightest gap", by_bytes, Fit::kTightest, {}},
      {"by bytes, lowest gap", by_bytes, Fit::kLowest, {}},
      {"by area, lowest gap", by_area, Fit::kLowest, {}},
      {"by first use, tightest gap", first_use, Fit::kTightest, {}},
      {"by pressure, even units from the bottom, odd from the top", by_pressure, Fit::kLowest,
       odd_unit},
      {"by length, short ones from the top", by_length, Fit::kLowest, below_median_length},
  };
}

// Hill climbing: an item at the top of the pool is moved to an earlier turn, where it may find a
// lower place; what is not worse is kept.
//
// Turns are taken in order of offset, each to the lowest gap. That never loses: by induction an
// item's old offset is free at its turn, as what came before ends no higher than it did. And some
// such order is optimal: that of an optimal packing.
void Improve(Packer& packer, int64_t lower_bound, Packer::Result& best) {
  const int64_t n = static_cast<int64_t>(best.offsets.size());
  constexpr int64_t kConflictTests = 50'000'000,
                    kMaxRounds = 400;  // a round tests about n * n / 2 conflicts
  const int64_t rounds = std::min(kMaxRounds, kConflictTests / (n * n + 1));
  const auto offset = [&](int32_t item) { return best.offsets[static_cast<size_t>(item)]; };
  Recipe recipe{"", std::vector<int32_t>(best.offsets.size()), Fit::kLowest, {}};
  std::vector<int32_t>& order = recipe.order;
  std::iota(order.begin(), order.end(), 0);
  for (int64_t round = 0; round < rounds && best.pool_bytes > lower_bound; ++round) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return offset(a) < offset(b); });
    std::vector<int64_t> at_top;  // turns of the items that end where the pool does
    for (int64_t turn = 0; turn < n; ++turn) {
      const int32_t item = order[static_cast<size_t>(turn)];
      if (offset(item) + packer.bytes(item) == best.pool_bytes) at_top.push_back(turn);
    }
    const PhiloxCounter words = PhiloxBlock(0, 0, static_cast<uint64_t>(round));
    // Now and then any item. Never the first turn: an item that ends at the top from
    // there is the lower bound.
    const int64_t from = words[2] % 4 != 0
                             ? at_top[words[0] % at_top.size()]
                             : 1 + static_cast<int64_t>(words[0] % static_cast<uint64_t>(n - 1));
    const int64_t to = static_cast<int64_t>(words[1] % static_cast<uint64_t>(from));
    std::rotate(order.begin() + to, order.begin() + from, order.begin() + from + 1);
    if (std::optional<Packer::Result> result = packer.Pack(recipe, best.pool_bytes + 1))
      best = std::move(*result);
  }
}

}  // namespace

Placement PlacePacked(const std::vector<Item>& items, int64_t lower_bound) {
  // Above this the search takes longer than the rest of planning: its work is quadratic. About 250
  // blocks of a transformer.
  constexpr size_t kMostItems = 5000;
  if (items.size() > kMostItems) return PlacePackedLarge(items, lower_bound);
  Packer packer(items, lower_bound);
  Packer::Result best;
  best.pool_bytes = std::numeric_limits<int64_t>::max();
  Recipe best_recipe{};
  for (Recipe& recipe : Recipes(items)) {
    if (std::optional<Packer::Result> result = packer.Pack(recipe, best.pool_bytes)) {
      best = std::move(*result);
      best_recipe = std::move(recipe);
    }
    if (best.pool_bytes == lower_bound) break;
  }
  const int64_t before = best.pool_bytes;
  Improve(packer, lower_bound, best);
  Placement placement;
  placement.offsets = std::move(best.offsets);
  placement.pool_bytes = best.pool_bytes;
  placement.notes.push_back(
      fmt::format("packed: {}{}", best_recipe.name, best.pool_bytes < before ? ", improved" : ""));
  return placement;
}

}  // namespace millrace::internal
