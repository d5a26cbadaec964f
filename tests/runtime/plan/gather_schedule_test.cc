#include "runtime/plan/schedule/gather_schedule.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>

namespace millrace {
namespace {

// A model of `blocks` blocks, each read at two positions of the forward and two of the backward,
// between an embedding that is read once and a head that is read where forward ends and backward
// begins. Positions: embed 0; block i 1+2i, 2+2i; head; backward in reverse.
struct Toy {
  explicit Toy(int blocks, Reshard reshard = Reshard::kAfterForward) {
    const int forward_last = 2 * blocks + 1;  // the head
    options.forward_ops = forward_last + 1;
    options.ops = options.forward_ops + 2 * blocks;
    uses.push_back({UnitId{0}, false, reshard, {0}});
    for (int i = 0; i < blocks; ++i) {
      const int back = options.ops - 2 - 2 * i;
      uses.push_back({UnitId{i + 1}, true, reshard, {1 + 2 * i, 2 + 2 * i, back, back + 1}});
    }
    uses.push_back({UnitId{blocks + 1}, false, reshard, {forward_last}});
  }
  std::vector<GatherSegment> Plan(int prefetch, int slots) {
    options.prefetch = prefetch;
    options.slots = slots;
    return PlanGathers(uses, options);
  }
  std::vector<UnitUse> uses;
  GatherOptions options;
};

std::vector<int> UnitsOf(const std::vector<GatherSegment>& segments) {
  std::vector<int> units;
  for (const GatherSegment& s : segments) units.push_back(s.unit.value);
  return units;
}

TEST_CASE("after_forward splits a block's stay, but keeps the last blocks over the turn-around",
          "[plan][gather]") {
  Toy toy(4);
  REQUIRE(UnitsOf(toy.Plan(0, 1)) == std::vector<int>{0, 1, 2, 3, 4, 5, 3, 2, 1});
  REQUIRE(UnitsOf(toy.Plan(0, 2)) == std::vector<int>{0, 1, 2, 3, 4, 5, 2, 1});
  REQUIRE(UnitsOf(toy.Plan(0, 4)) == std::vector<int>{0, 1, 2, 3, 4, 5});
  const std::vector<GatherSegment> segments = toy.Plan(0, 2);
  REQUIRE(segments[1].first == 1);
  REQUIRE(segments[1].last == 2);
  REQUIRE(segments[3].first == 5);  // block 2 stays from its forward to its backward
  REQUIRE(segments[3].last == 13);
}

TEST_CASE("after_backward and never keep one stay per unit", "[plan][gather]") {
  for (const Reshard reshard : {Reshard::kAfterBackward, Reshard::kNever}) {
    Toy toy(4, reshard);
    const std::vector<GatherSegment> segments = toy.Plan(1, 2);
    REQUIRE(UnitsOf(segments) == std::vector<int>{0, 1, 2, 3, 4, 5});
    for (const GatherSegment& s : segments) {
      REQUIRE(s.whole_step == (reshard == Reshard::kNever));
      REQUIRE_FALSE(s.slot);  // all blocks are live at the turn-around: no slots to wait for
    }
    // Prefetch works all the same: one gather ahead.
    for (size_t k = 1; k < segments.size(); ++k)
      REQUIRE(segments[k].issue == segments[k - 1].first);
  }
}

TEST_CASE("without prefetch a unit is gathered where it is needed, and nothing is carried",
          "[plan][gather]") {
  for (const GatherSegment& s : Toy(5).Plan(0, 2)) {
    REQUIRE(s.issue == s.first);
    REQUIRE_FALSE(s.carried);
  }
}

TEST_CASE("the first gathers come from the microbatch before, unless nothing does",
          "[plan][gather]") {
  Toy toy(4);
  std::vector<GatherSegment> segments = toy.Plan(2, 3);
  for (size_t k = 0; k < segments.size(); ++k) REQUIRE(segments[k].carried == (k < 2));
  // Issued as late as their distance asks for, and when their slot is free: block 0's bucket is
  // busy until its backward ends.
  REQUIRE(segments[0].carry_issue <= segments[1].carry_issue);
  REQUIRE(segments[1].carry_issue == toy.options.ops);
  toy.options.carry = false;
  segments = toy.Plan(2, 3);
  for (const GatherSegment& s : segments) REQUIRE_FALSE(s.carried);
  REQUIRE(segments[0].issue == 0);
  REQUIRE(segments[1].issue == 0);
}

// Behind the trunk and the head a last block, ahead of which the embedding is read again and behind
// which the head is: multi-token prediction.
Toy WithFurtherToken(int blocks) {
  Toy toy(blocks);
  const int head = 2 * blocks + 1;  // then the embedding, the last block twice, the head again
  toy.options.forward_ops = head + 5;
  toy.options.ops = toy.options.forward_ops + 2 * (blocks + 1);
  toy.uses[0].reads = {0, head + 1};
  for (int i = 0; i < blocks; ++i) {
    const int back = toy.options.ops - 2 - 2 * i;
    toy.uses[static_cast<size_t>(i) + 1].reads = {1 + 2 * i, 2 + 2 * i, back, back + 1};
  }
  toy.uses.back().reads = {head, head + 4};
  const int back = toy.options.forward_ops;
  toy.uses.push_back(
      {UnitId{blocks + 2}, true, Reshard::kAfterForward, {head + 2, head + 3, back, back + 1}});
  return toy;
}

TEST_CASE("gathers of what a further token shares with the trunk never take a block's slot",
          "[plan][gather]") {
  for (int blocks = 3; blocks <= 6; ++blocks)
    for (int slots = 2; slots <= 3; ++slots) {
      INFO("blocks " << blocks << " slots " << slots);
      Toy toy = WithFurtherToken(blocks);
      const auto stays = [&](const std::vector<GatherSegment>& segments) {
        std::vector<std::array<int, 4>> of_blocks;
        for (const GatherSegment& s : segments)
          if (toy.uses.at(static_cast<size_t>(s.unit.value)).unit == s.unit && s.unit.value != 0 &&
              s.unit.value != blocks + 1)
            of_blocks.push_back({s.unit.value, s.first, s.last, s.slot});
        return of_blocks;
      };
      const std::vector<GatherSegment> shared = toy.Plan(1, slots);
      for (const GatherSegment& s : shared)
        CHECK(s.slot == (s.unit.value != 0 && s.unit.value != blocks + 1));
      for (int at = 0; at < toy.options.ops; ++at)
        CHECK(std::count_if(shared.begin(), shared.end(), [&](const GatherSegment& s) {
                return s.slot && s.first <= at && at <= s.last;
              }) <= slots);
      // The blocks stay where they are when nothing is shared.
      Toy own = toy;
      own.uses[0].reads = {0};
      own.uses[static_cast<size_t>(blocks) + 1].reads = {2 * blocks + 1};
      CHECK(stays(own.Plan(1, slots)) == stays(shared));
      // Were the embedding and the head blocks, they would take slots of the others.
      Toy stealing = toy;
      stealing.uses[0].block = true;
      stealing.uses[static_cast<size_t>(blocks) + 1].block = true;
      CHECK(stays(stealing.Plan(1, slots)) != stays(shared));
    }
}

TEST_CASE("slots, stays and distances hold over sizes", "[plan][gather]") {
  for (int blocks = 1; blocks <= 7; ++blocks)
    for (int prefetch = 0; prefetch <= 4; ++prefetch)
      for (int slots = prefetch + 1; slots <= prefetch + 3; ++slots)
        for (const Reshard reshard :
             {Reshard::kNever, Reshard::kAfterBackward, Reshard::kAfterForward}) {
          Toy toy(blocks, reshard);
          const std::vector<GatherSegment> segments = toy.Plan(prefetch, slots);
          INFO("blocks " << blocks << " prefetch " << prefetch << " slots " << slots << " reshard "
                         << static_cast<int>(reshard));
          // Every read is covered by exactly one segment of its unit.
          for (const UnitUse& use : toy.uses)
            for (const int read : use.reads)
              REQUIRE(std::count_if(segments.begin(), segments.end(), [&](const GatherSegment& s) {
                        return s.unit == use.unit && s.first <= read && read <= s.last;
                      }) == 1);
          for (size_t k = 0; k < segments.size(); ++k) {
            REQUIRE(segments[k].issue <= segments[k].first);
            REQUIRE((k == 0 || segments[k].first >= segments[k - 1].first));
            REQUIRE((k == 0 || segments[k].issue >=
                                   segments[k - 1].issue));  // one stream: issued in order of need
            if (static_cast<int>(k) >= prefetch && prefetch > 0)
              REQUIRE(
                  segments[k].issue >=
                  std::min(segments[k].first, segments[k - static_cast<size_t>(prefetch)].first));
          }
          // At most `slots` slot segments at once, at every position; a carried one also from where
          // it is issued to the microbatch's end.
          for (int at = 0; at < toy.options.ops; ++at) {
            int live = 0;
            for (const GatherSegment& s : segments) {
              if (!s.slot) continue;
              const int begin = s.carried ? 0 : s.issue;
              live += begin <= at && at <= s.last;
              live += s.carried && !s.whole_step && s.carry_issue <= at && at > s.last;
            }
            REQUIRE(live <= slots);
          }
          // One unit is never in two places.
          for (const GatherSegment& a : segments)
            for (const GatherSegment& b : segments)
              if (&a < &b && a.unit == b.unit) REQUIRE((a.last < b.issue || b.last < a.issue));
        }
}

}  // namespace
}  // namespace millrace
