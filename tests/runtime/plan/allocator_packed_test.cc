// Packing: against exhaustive search on small cases, against the lower bound on the shapes that
// training steps have, and how long it takes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <iostream>
#include <limits>
#include <numeric>

#include "runtime/plan/pool/allocator.h"
#include "runtime/plan/pool/allocator_occupancy.h"
#include "tests/runtime/plan/allocator_testing.h"

namespace millrace {
namespace {

// The smallest pool: the best over all orders of putting each item as low as it goes. Some
// order is optimal, that of the offsets of an optimal packing: each item then finds its offset
// in it free, or goes lower.
int64_t BrutePacking(const std::vector<Item>& items) {
  const auto meet = [&](size_t a, size_t b) {
    for (int64_t p = 0; p < LastPosition(items); ++p)
      if (LiveAt(items[a], p) && LiveAt(items[b], p)) return true;
    return false;
  };
  std::vector<std::vector<bool>> meets(items.size(), std::vector<bool>(items.size()));
  for (size_t a = 0; a < items.size(); ++a)
    for (size_t b = 0; b < items.size(); ++b) meets[a][b] = meet(a, b);
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  int64_t best = std::numeric_limits<int64_t>::max();
  do {
    std::vector<int64_t> bottom(items.size(), -1);
    int64_t pool = 0;
    for (const size_t i : order) {
      int64_t at = 0;
      const auto blocked_by = [&](size_t o) {
        return bottom[o] >= 0 && meets[i][o] && bottom[o] < at + Blocks(items[i]) &&
               at < bottom[o] + Blocks(items[o]);
      };
      for (size_t o = 0; o < items.size();) {
        if (blocked_by(o)) {
          at = bottom[o] + Blocks(items[o]);
          o = 0;
        } else {
          ++o;
        }
      }
      bottom[i] = at;
      pool = std::max(pool, at + Blocks(items[i]));
    }
    best = std::min(best, pool * kArenaAlignment);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

TEST_CASE("packed is optimal in 99 of 100 small cases, and never below the optimum",
          "[plan][allocator][packed]") {
  std::mt19937 random(21);
  int optimal = 0, above_lower_bound = 0;
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<Item> items = RandomItems(random, 2 + round % 5);
    const int64_t best = BrutePacking(items);
    const Placement placement = PlanPool(items, {});
    VerifyPlacement(items, placement);
    REQUIRE(placement.lower_bound <= best);
    REQUIRE(placement.pool_bytes >= best);
    optimal += placement.pool_bytes == best;
    above_lower_bound += best > placement.lower_bound;
  }
  CAPTURE(optimal, above_lower_bound);
  REQUIRE(optimal >= kRounds * 99 / 100);
  REQUIRE(
      above_lower_bound >
      10);  // sticky items make the bound unreachable at times: those cases are among the tested
}

//   even units  |==0==|   |==2==|   ...  from the bottom
//   odd units      |==1==|   |==3==|     from the top
TEST_CASE("any chain of neighbours packs to its largest pair", "[plan][allocator][packed]") {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<Item> items;
    const int32_t units = static_cast<int32_t>(1 + Below(random, 60));
    std::vector<int64_t> unit_blocks(static_cast<size_t>(units), 0);
    for (int32_t unit = 0; unit < units; ++unit)
      for (int64_t b = 1 + Below(random, 3); b > 0; --b) {
        const int64_t blocks = 1 + Below(random, 1000);
        unit_blocks[static_cast<size_t>(unit)] += blocks;
        items.push_back(MakeItem("b", blocks, {{unit, unit + 2}, {500 - unit, 502 - unit}}, unit));
      }
    int64_t pair = unit_blocks[0];
    for (size_t u = 1; u < unit_blocks.size(); ++u)
      pair = std::max(pair, unit_blocks[u - 1] + unit_blocks[u]);
    const Placement placement = PlanPool(items, {});
    VerifyPlacement(items, placement);
    REQUIRE(placement.pool_bytes == pair * kArenaAlignment);
  }
}

// A training step of `layers` layers, in positions: forward layer l at [kPerLayer * l, ...),
// backward mirrored. Per layer: gathered parameters in both phases, a gradient bucket kept while
// its reduction runs, activations saved from forward to backward, temporaries of both phases.
std::vector<Item> StepItems(int64_t layers, int64_t saved, int64_t temporaries) {
  constexpr int64_t kPerLayer = 32;
  std::mt19937 random(static_cast<uint32_t>(layers));
  std::vector<Item> items;
  const int64_t end = 2 * layers * kPerLayer;
  const auto name = [](const char* what, int64_t layer, int64_t i) {
    return std::string(what) + std::to_string(layer) + "." + std::to_string(i);
  };
  for (int64_t l = 0; l < layers; ++l) {
    const int64_t forward = l * kPerLayer, backward = end - forward - kPerLayer;
    const int32_t unit = static_cast<int32_t>(l);
    const Interval first{std::max<int64_t>(0, forward - kPerLayer), forward + kPerLayer};
    const Interval second{std::max(layers * kPerLayer, backward - kPerLayer), backward + kPerLayer};
    items.push_back(MakeItem(name("params", l, 0), 4000,
                             first.end == second.begin
                                 ? std::vector{Interval{first.begin, second.end}}
                                 : std::vector{first, second},
                             unit));
    items.push_back(MakeItem(name("grads", l, 0), 8000,
                             {{backward, std::min(end, backward + 2 * kPerLayer)}}, unit));
    for (int64_t i = 0; i < saved; ++i) {
      const int64_t at = i % kPerLayer;
      items.push_back(
          MakeItem(name("saved", l, i), 100 + 50 * (i % 7), {{forward + at, end - forward - at}}));
    }
    for (int64_t i = 0; i < temporaries; ++i) {
      const int64_t at = Below(random, kPerLayer - 3), length = 1 + Below(random, 3);
      std::vector<Interval> live = {{forward + at, forward + at + length},
                                    {backward + at, backward + at + length}};
      items.push_back(MakeItem(name("temp", l, i), 50 + Below(random, 900), std::move(live)));
    }
  }
  return items;
}

TEST_CASE("a training step's arena packs to within 2% of its lower bound",
          "[plan][allocator][packed]") {
  for (const int64_t layers : {2, 7, 12}) {
    const std::vector<Item> items = StepItems(layers, 11, 15);
    const Placement placement = PlanPool(items, {});
    CAPTURE(layers, placement.pool_bytes, placement.lower_bound, placement.notes);
    VerifyPlacement(items, placement);
    REQUIRE(placement.pool_bytes * 100 <= placement.lower_bound * 102);
  }
}

// More items than are searched (5000): what is not around the peak is put beside it.
TEST_CASE("a step of hundreds of layers packs as near to its bound as a small one",
          "[plan][allocator][packed]") {
  for (const int64_t layers : {200, 400}) {
    const std::vector<Item> items = StepItems(layers, 11, 15);
    REQUIRE(items.size() > 5000);
    const Placement placement = PlanPool(items, {});
    CAPTURE(layers, placement.pool_bytes, placement.lower_bound, placement.notes);
    VerifyPlacement(items, placement);
    REQUIRE(placement.pool_bytes * 1000 <= placement.lower_bound * 1001);
  }
}

// The lowest and the tightest offset, from everything placed so far, pair by pair.
struct ByHand {
  int64_t lowest = 0, tightest = -1;
  ByHand(const std::vector<Item>& items, const std::vector<int64_t>& offsets, size_t item,
         int64_t cap) {
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (size_t o = 0; o < item; ++o) {
      bool together = false;
      for (int64_t p = 0; p < LastPosition(items); ++p)
        together |= LiveAt(items[o], p) && LiveAt(items[item], p);
      if (together && Blocks(items[o]) > 0)
        taken.emplace_back(offsets[o], offsets[o] + Blocks(items[o]) * kArenaAlignment);
    }
    std::sort(taken.begin(), taken.end());
    const int64_t bytes = Blocks(items[item]) * kArenaAlignment;
    int64_t narrowest = std::numeric_limits<int64_t>::max(), bottom = 0;
    lowest = -1;
    const auto gap = [&](int64_t end) {
      if (end - bottom < bytes) return;
      if (lowest < 0) lowest = bottom;
      if (end - bottom < narrowest) {
        narrowest = end - bottom;
        tightest = bottom;
      }
    };
    for (const auto& [begin, end] : taken) {
      gap(begin);
      bottom = std::max(bottom, end);
    }
    gap(cap);
    if (lowest < 0) lowest = bottom;
    if (tightest < 0) tightest = bottom;
  }
};

TEST_CASE("occupancy finds the gaps that looking at every pair finds",
          "[plan][allocator][packed]") {
  std::mt19937 random(9);
  for (int round = 0; round < 200; ++round) {
    const std::vector<Item> items = RandomItems(random, 3 + round % 25);
    const internal::ItemCuts cuts(items);
    internal::Occupancy taken(items, cuts);
    const int64_t cap = (10 + Below(random, 60)) * kArenaAlignment;
    std::vector<int64_t> offsets;
    for (size_t i = 0; i < items.size(); ++i) {
      const auto item = static_cast<int32_t>(i);
      const ByHand expected(items, offsets, i, cap);
      if (Blocks(items[i]) > 0) {
        REQUIRE(taken.LowestFor(item) == expected.lowest);
        REQUIRE(taken.TightestFor(item, cap) == expected.tightest);
      }
      offsets.push_back(round % 2 == 0 ? taken.LowestFor(item) : taken.TightestFor(item, cap));
      taken.Place(item, offsets.back());
    }
  }
}

TEST_CASE("an item costs no more in a step of twice as many layers", "[plan][allocator][packed]") {
  const auto runs_per_item = [](int64_t layers) {
    const std::vector<Item> items = StepItems(layers, 11, 15);
    const internal::ItemCuts cuts(items);
    internal::Occupancy taken(items, cuts);
    std::vector<int32_t> by_bytes(items.size());
    std::iota(by_bytes.begin(), by_bytes.end(), 0);
    std::stable_sort(by_bytes.begin(), by_bytes.end(), [&](int32_t a, int32_t b) {
      return items[static_cast<size_t>(a)].bytes > items[static_cast<size_t>(b)].bytes;
    });
    for (const int32_t item : by_bytes) taken.Place(item, taken.LowestFor(item));
    return static_cast<double>(taken.looked_at()) / static_cast<double>(items.size());
  };
  REQUIRE(runs_per_item(800) < 1.2 * runs_per_item(400));  // a level more of the tree
}

// Not a test of time, which no shared machine keeps: it prints what packing costs.
// Run it alone with the tag.
TEST_CASE("the time to pack 3000 items", "[.][benchmark]") {
  std::mt19937 random(4);
  std::vector<Item> scattered;
  for (int i = 0; i < 3000; ++i) {
    std::vector<Interval> live;
    int64_t begin = Below(random, 3000);
    for (int64_t k = 1 + Below(random, 3); k > 0; --k) {
      live.push_back({begin, begin + 1 + Below(random, 200)});
      begin = live.back().end + Below(random, 1000);
    }
    scattered.push_back(MakeItem("x", 1 + Below(random, 4000), std::move(live), i % 64));
  }
  const std::pair<const char*, std::vector<Item>> cases[] = {{"32 layers", StepItems(32, 40, 52)},
                                                             {"scattered", scattered}};
  for (const auto& [name, items] : cases) {
    const auto start = std::chrono::steady_clock::now();
    const Placement placement = PlanPool(items, {});
    const std::chrono::duration<double, std::milli> elapsed =
        std::chrono::steady_clock::now() - start;
    std::cout << name << ": " << items.size() << " items, " << elapsed.count() << " ms, "
              << static_cast<double>(placement.pool_bytes) /
                     static_cast<double>(placement.lower_bound)
              << " of the lower bound (" << placement.notes.front() << ")\n";
    VerifyPlacement(items, placement);
  }
}

}  // namespace
}  // namespace millrace
