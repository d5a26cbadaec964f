// fixed, max_pool and coloured: who shares a slot with whom, how large slots are, and what is said
// when there are too few.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>

#include "runtime/base/error.h"
#include "runtime/plan/pool/allocator.h"
#include "tests/runtime/plan/allocator_testing.h"

namespace millrace {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;

// A bucket of layer `unit` of a chain: live with its neighbours.
Item Bucket(int32_t unit, int64_t blocks, DType dtype = kF32) {
  return MakeItem("u" + std::to_string(unit), blocks, {{unit, unit + 2}}, unit, dtype);
}

std::vector<int64_t> BlockOffsets(const Placement& placement) {
  std::vector<int64_t> blocks;
  for (const int64_t offset : placement.offsets) blocks.push_back(offset / kArenaAlignment);
  return blocks;
}

std::string ConfigError(const std::vector<Item>& items, AllocatorKind kind, int slots) {
  try {
    PlanPool(items, {.kind = kind, .slots = slots});
  } catch (const Error& error) {
    CAPTURE(error.what());
    REQUIRE(error.code() == ErrorCode::kConfig);
    return error.what();
  }
  FAIL("no error");
  return {};
}

// Units 0 1 2 3 4 of 2 2 5 2 5 blocks: three of one shape take turns in two copies, the others
// stay.
TEST_CASE("fixed double-buffers the commonest shape and keeps everything else",
          "[plan][allocator][slots]") {
  const std::vector<Item> items = {Bucket(0, 2), Bucket(1, 2), Bucket(2, 5),
                                   Bucket(3, 2), Bucket(4, 5), MakeItem("head", 3, {{0, 9}})};
  const Placement placement = PlanPool(items, {.kind = AllocatorKind::kFixed});
  REQUIRE(BlockOffsets(placement) == std::vector<int64_t>{0, 2, 4, 0, 9, 14});
  REQUIRE(placement.pool_bytes == 17 * 256);
  VerifyPlacement(items, placement);
}

TEST_CASE("fixed compares shapes by the ordered dtypes and padded bytes of all buckets",
          "[plan][allocator][slots]") {
  std::vector<Item> items = {Bucket(0, 2), Bucket(0, 1, kBF16), Bucket(1, 2), Bucket(1, 1, kBF16)};
  items[2].bytes -= 100;  // the same when padded
  REQUIRE(PlanPool(items, {.kind = AllocatorKind::kFixed}).pool_bytes == 2 * 3 * 256);
  REQUIRE(BlockOffsets(PlanPool(items, {.kind = AllocatorKind::kFixed})) ==
          std::vector<int64_t>{0, 4, 2, 5});

  // Otherwise unit 0, the first met, has two copies and unit 1 is persistent.
  std::vector<Item> others = items;
  std::swap(others[2], others[3]);  // another order of buckets
  REQUIRE(PlanPool(others, {.kind = AllocatorKind::kFixed}).pool_bytes == (2 * 3 + 3) * 256);
  others = items;
  others[3].dtype = kF32;
  REQUIRE(PlanPool(others, {.kind = AllocatorKind::kFixed}).pool_bytes == (2 * 3 + 3) * 256);
  others = items;
  others[3].bytes += 1;
  REQUIRE(PlanPool(others, {.kind = AllocatorKind::kFixed}).pool_bytes == (2 * 3 + 4) * 256);
  others = items;
  others.pop_back();
  REQUIRE(PlanPool(others, {.kind = AllocatorKind::kFixed}).pool_bytes == (2 * 3 + 2) * 256);
}

// Unit  0: f32 4, 1        slot f32[0]: 4 blocks, two copies    at 0 and 4
//       1: f32 2, 3, bf16 2       [1]: 2                        at 8 and 10
//       2: f32 1             bf16[0]: 2                         at 12 and 14
TEST_CASE("max_pool slots hold the j-th largest bucket of any unit, per dtype",
          "[plan][allocator][slots]") {
  const std::vector<Item> items = {Bucket(0, 1),
                                   Bucket(0, 4),
                                   Bucket(1, 2),
                                   Bucket(1, 3),
                                   Bucket(1, 2, kBF16),
                                   Bucket(2, 1),
                                   MakeItem("head", 7, {{0, 9}}, -1, kBF16)};
  const Placement placement = PlanPool(items, {.kind = AllocatorKind::kMaxPool});
  REQUIRE(BlockOffsets(placement) == std::vector<int64_t>{8, 0, 10, 4, 12, 0, 16});
  REQUIRE(placement.pool_bytes == (2 * (4 + 2 + 2) + 7) * 256);
  VerifyPlacement(items, placement);
  REQUIRE(PlanPool(items, {.kind = AllocatorKind::kMaxPool, .slots = 3}).pool_bytes ==
          (3 * (4 + 2 + 2) + 7) * 256);
}

// Can the slots (descending) hold the buckets (any order), one in each? Tried in every assignment.
bool Holds(const std::vector<int64_t>& slots, std::vector<int64_t> buckets) {
  if (buckets.size() > slots.size()) return false;
  std::vector<size_t> order(slots.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  do {
    bool fits = true;
    for (size_t b = 0; b < buckets.size(); ++b) fits = fits && buckets[b] <= slots[order[b]];
    if (fits) return true;
  } while (std::next_permutation(order.begin(), order.end()));
  return false;
}

TEST_CASE("no slot vector that holds every unit is smaller than max_pool's in any component",
          "[plan][allocator][slots]") {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    std::vector<Item> items;
    std::vector<std::vector<int64_t>> units(static_cast<size_t>(1 + Below(random, 5)));
    for (size_t u = 0; u < units.size(); ++u)
      for (int64_t b = Below(random, 4); b > 0; --b) {
        units[u].push_back(1 + Below(random, 4));
        items.push_back(Bucket(static_cast<int32_t>(u), units[u].back()));
      }
    // Read the slots off the placement at one copy of each, by putting units one after the other.
    for (Item& item : items) item.intervals = {{2 * item.unit, 2 * item.unit + 1}};
    const Placement placement = PlanPool(items, {.kind = AllocatorKind::kMaxPool, .slots = 1});
    std::set<int64_t> starts(placement.offsets.begin(), placement.offsets.end());
    starts.insert(placement.pool_bytes);
    std::vector<int64_t> planned;
    for (auto start = starts.begin(); std::next(start) != starts.end(); ++start)
      planned.push_back((*std::next(start) - *start) / kArenaAlignment);
    if (items.empty()) planned.clear();

    for (const std::vector<int64_t>& unit : units) REQUIRE(Holds(planned, unit));
    // Every descending vector of three slots of 0 to 4 blocks.
    for (int64_t a = 0; a <= 4; ++a)
      for (int64_t b = 0; b <= a; ++b)
        for (int64_t c = 0; c <= b; ++c) {
          const std::vector<int64_t> slots = {a, b, c};
          if (!std::all_of(units.begin(), units.end(),
                           [&](const auto& unit) { return Holds(slots, unit); }))
            continue;
          for (size_t j = 0; j < planned.size(); ++j)
            if (planned[j] > slots[j])
              FAIL("slot " << j << " has " << planned[j] << " blocks where " << slots[j] << " do");
        }
  }
}

// Units 0 1 2 3 of 5 1 4 2 blocks in a chain: 5 and 4 share, 2 and 1 share.
TEST_CASE("coloured gives a slot to buckets that never meet, largest first",
          "[plan][allocator][slots]") {
  std::vector<Item> items = {Bucket(0, 5), Bucket(1, 1), Bucket(2, 4), Bucket(3, 2),
                             MakeItem("head", 3, {{0, 1}})};
  const Placement placement = PlanPool(items, {.kind = AllocatorKind::kColoured});
  REQUIRE(BlockOffsets(placement) == std::vector<int64_t>{0, 5, 0, 5, 7});
  REQUIRE(placement.pool_bytes == 10 * 256);
  items[2].dtype = kBF16;  // another encoding never shares; unit 3 now finds unit 0's slot free
  REQUIRE(PlanPool(items, {.kind = AllocatorKind::kColoured}).pool_bytes == (5 + 1 + 4 + 3) * 256);
}

// The least total of slots over all ways to part the items into groups that never meet.
int64_t BruteColouring(const std::vector<Item>& items) {
  std::vector<std::vector<size_t>> groups;
  const auto meet = [&](size_t a, size_t b) {
    for (int64_t p = 0; p < LastPosition(items); ++p)
      if (LiveAt(items[a], p) && LiveAt(items[b], p)) return true;
    return false;
  };
  int64_t best = std::numeric_limits<int64_t>::max();
  const std::function<void(size_t)> place = [&](size_t i) {
    if (i == items.size()) {
      int64_t total = 0;
      for (const auto& group : groups) {
        int64_t most = 0;
        for (const size_t g : group) most = std::max(most, Blocks(items[g]));
        total += most * kArenaAlignment;
      }
      best = std::min(best, total);
      return;
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      if (std::any_of(groups[g].begin(), groups[g].end(), [&](size_t o) { return meet(i, o); }))
        continue;
      groups[g].push_back(i);
      place(i + 1);
      groups[g].pop_back();
    }
    groups.push_back({i});
    place(i + 1);
    groups.pop_back();
  };
  place(0);
  return best;
}

TEST_CASE("coloured is the best colouring in nine of ten small cases, and never below it",
          "[plan][allocator][slots]") {
  std::mt19937 random(9);
  int optimal = 0;
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Item> items = RandomItems(random, 6);
    for (size_t i = 0; i < items.size(); ++i) {
      items[i].dtype = kF32;
      items[i].unit = static_cast<int32_t>(i);
    }
    const int64_t best = BruteColouring(items);
    const int64_t planned = PlanPool(items, {.kind = AllocatorKind::kColoured}).pool_bytes;
    REQUIRE(planned >= best);
    optimal += planned == best;
  }
  CAPTURE(optimal);
  REQUIRE(optimal >= kRounds * 9 / 10);
}

// Every slot asked in turn, from either end.
std::vector<int64_t> PlainColouring(const std::vector<Item>& items) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto by = [&](auto key) {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return key(items[a]) < key(items[b]); });
  };
  by([](const Item& item) { return item.intervals[0].begin; });
  by([](const Item& item) { return -Blocks(item); });
  const auto meet = [&](size_t a, size_t b) {
    for (const Interval& x : items[a].intervals)
      for (const Interval& y : items[b].intervals)
        if (x.begin < y.end && y.begin < x.end) return true;
    return false;
  };
  std::vector<int64_t> best;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const bool from_the_last : {false, true}) {
    std::vector<std::vector<size_t>> slots;
    for (const size_t i : order) {
      size_t at = slots.size();
      for (size_t s = 0; s < slots.size() && at == slots.size(); ++s) {
        const size_t slot = from_the_last ? slots.size() - 1 - s : s;
        if (std::none_of(slots[slot].begin(), slots[slot].end(),
                         [&](size_t other) { return meet(i, other); }))
          at = slot;
      }
      if (at == slots.size()) slots.emplace_back();
      slots[at].push_back(i);
    }
    std::vector<int64_t> offsets(items.size());
    int64_t end = 0;
    for (const std::vector<size_t>& slot : slots) {
      for (const size_t i : slot) offsets[i] = end;
      end += Blocks(items[slot[0]]) * kArenaAlignment;
    }
    if (end < least) least = end, best = offsets;
  }
  return best;
}

TEST_CASE("coloured places as one that asks every slot in turn", "[plan][allocator][slots]") {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    CAPTURE(round);
    std::vector<Item> items = RandomItems(random, 1 + Below(random, 60));
    // From few that meet to all live together for most of the time.
    const int64_t longer = round % 5 * 4;
    for (size_t i = 0; i < items.size(); ++i) {
      items[i].dtype = kF32;
      items[i].unit = static_cast<int32_t>(i);
      if (round % 7 == 0) items[i].bytes = 256;
      if (longer > 0)
        items[i].intervals = {{Below(random, 12), 12 + Below(random, longer)},
                              {40 + Below(random, 4), 44 + Below(random, 3)}};
      if (longer > 0 && items[i].intervals[0].begin == items[i].intervals[0].end)
        ++items[i].intervals[0].end;
    }
    REQUIRE(PlanPool(items, {.kind = AllocatorKind::kColoured}).offsets == PlainColouring(items));
  }
}

TEST_CASE("too few copies name both buckets, the slot and memory.slots",
          "[plan][allocator][slots]") {
  using Catch::Contains;
  const std::vector<Item> chain = {Bucket(0, 2), Bucket(1, 2), Bucket(2, 2)};
  for (const AllocatorKind kind : {AllocatorKind::kFixed, AllocatorKind::kMaxPool}) {
    const std::string slot = kind == AllocatorKind::kFixed ? "fixed f32[0]" : "max_pool f32[0]";
    CHECK_THAT(ConfigError(chain, kind, 1), Contains("'u0'") && Contains("'u1'") &&
                                                Contains(slot) &&
                                                Contains("memory.slots to at least 2"));
    CHECK_THAT(ConfigError(chain, kind, 0), Contains("memory.slots is 0"));
    REQUIRE_NOTHROW(PlanPool(chain, {.kind = kind, .slots = 2}));
  }
}

// Each pair meets, never all three: two copies are enough for the moment, but not for fixed
// addresses.
TEST_CASE("copies that suffice at every position may still not suffice for fixed addresses",
          "[plan][allocator][slots]") {
  const std::vector<Item> ring = {MakeItem("a", 1, {{0, 1}, {4, 5}}, 0),
                                  MakeItem("b", 1, {{0, 1}, {2, 3}}, 1),
                                  MakeItem("c", 1, {{2, 3}, {4, 5}}, 2)};
  using Catch::Contains;
  CHECK_THAT(ConfigError(ring, AllocatorKind::kMaxPool, 2),
             Contains("'c'") && (Contains("'a'") || Contains("'b'")) &&
                 Contains("memory.slots to at least 3"));
  REQUIRE(PlanPool(ring, {.kind = AllocatorKind::kMaxPool, .slots = 3}).pool_bytes == 3 * 256);
}

// In turn a takes copy 0 and b copy 1; then c meets both. Only with b in a's copy is there one
// left.
TEST_CASE("copies are reassigned when the first attempt runs into a wall",
          "[plan][allocator][slots]") {
  const std::vector<Item> items = {MakeItem("a", 1, {{0, 1}, {4, 5}}, 0),
                                   MakeItem("b", 1, {{1, 2}, {6, 7}}, 1),
                                   MakeItem("c", 1, {{4, 5}, {6, 7}}, 2)};
  const Placement placement = PlanPool(items, {.kind = AllocatorKind::kMaxPool, .slots = 2});
  VerifyPlacement(items, placement);
  REQUIRE(placement.offsets == std::vector<int64_t>{0, 0, 256});
}

TEST_CASE("a chain of units goes round all copies, at any prefetch depth",
          "[plan][allocator][slots]") {
  const int slots = GENERATE(1, 2, 3, 5);
  const AllocatorKind kind = GENERATE(AllocatorKind::kFixed, AllocatorKind::kMaxPool);
  std::vector<Item> items;
  for (int32_t unit = 0; unit < 40; ++unit)
    items.push_back(MakeItem("u" + std::to_string(unit), 3,
                             {{unit, unit + slots}, {200 - unit - slots, 200 - unit}}, unit));
  const Placement placement = PlanPool(items, {.kind = kind, .slots = slots});
  VerifyPlacement(items, placement);
  for (int32_t unit = 0; unit < 40; ++unit)
    REQUIRE(placement.offsets[static_cast<size_t>(unit)] == unit % slots * 3 * 256);
}

}  // namespace
}  // namespace millrace
