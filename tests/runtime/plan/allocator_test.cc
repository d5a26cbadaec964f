// What every allocator promises, and the replay of `dynamic`. Slots: allocator_slots_test.cc.
// Packing: allocator_packed_test.cc.
#include "runtime/plan/pool/allocator.h"

#include <catch2/catch.hpp>
#include <functional>
#include <iterator>

#include "runtime/base/error.h"
#include "tests/runtime/plan/allocator_testing.h"

namespace millrace {
namespace {

constexpr AllocatorKind kAll[] = {AllocatorKind::kDynamic,  AllocatorKind::kPersistent,
                                  AllocatorKind::kFixed,    AllocatorKind::kMaxPool,
                                  AllocatorKind::kColoured, AllocatorKind::kPacked};

std::string MessageOf(ErrorCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CAPTURE(error.what());
    REQUIRE(error.code() == code);
    return error.what();
  }
  FAIL("no error");
  return {};
}

TEST_CASE("no allocator lets two live items overlap, nor beats the lower bound",
          "[plan][allocator]") {
  const AllocatorKind kind = GENERATE(from_range(std::begin(kAll), std::end(kAll)));
  const int64_t count = GENERATE(0, 1, 2, 5, 17, 40);
  CAPTURE(static_cast<int>(kind), count);
  std::mt19937 random(static_cast<uint32_t>(count));
  int placed = 0;
  for (int round = 0; round < 100; ++round) {
    const std::vector<Item> items = RandomItems(random, count);
    // Enough copies for any lifetimes: a slot has at most one bucket of each unit.
    const PoolOptions options{.kind = kind, .slots = static_cast<int>(count) + 1};
    const Placement placement = PlanPool(items, options);
    ++placed;
    VerifyPlacement(items, placement);
    REQUIRE(BruteIsValid(items, placement));
    REQUIRE(placement.offsets.size() == items.size());
    REQUIRE(placement.interval_offsets.empty() ==
            (kind != AllocatorKind::kDynamic || items.empty()));
    REQUIRE(placement.lower_bound == BruteLowerBound(items));
    REQUIRE(placement.lower_bound == LowerBound(items));
    REQUIRE(placement.pool_bytes >= placement.lower_bound);
    REQUIRE(placement.pool_bytes % kArenaAlignment == 0);

    const Placement again = PlanPool(items, options);
    REQUIRE(again.offsets == placement.offsets);
    REQUIRE(again.interval_offsets == placement.interval_offsets);
    REQUIRE(again.pool_bytes == placement.pool_bytes);
  }
  REQUIRE(placed == 100);
}

TEST_CASE("persistent gives every item bytes of its own", "[plan][allocator]") {
  const std::vector<Item> items = {MakeItem("a", 3, {{0, 1}}), MakeItem("b", 1, {{5, 6}}),
                                   MakeItem("c", 2, {{0, 9}})};
  const Placement placement = PlanPool(items, {.kind = AllocatorKind::kPersistent});
  REQUIRE(placement.offsets == std::vector<int64_t>{0, 3 * 256, 4 * 256});
  REQUIRE(placement.pool_bytes == 6 * 256);
  REQUIRE(placement.lower_bound == 5 * 256);
}

// position  0 1 2 3 4 5
//   a  2    =======          segment 0
//   b  1      =              segment 1, reserved while a is live
//   c  1          ===        the smallest cached block that fits: b's, not a's
//   d  1            = =      a's block, split; then b's, which is smaller than a's, whole again
//   e  1            =        the rest of a's block
TEST_CASE("dynamic takes the smallest cached block and splits it", "[plan][allocator]") {
  const std::vector<Item> items = {MakeItem("a", 2, {{0, 3}}), MakeItem("b", 1, {{1, 2}}),
                                   MakeItem("c", 1, {{3, 5}}), MakeItem("d", 1, {{4, 5}, {5, 6}}),
                                   MakeItem("e", 1, {{4, 5}})};
  const Placement placement = PlanPool(items, {.kind = AllocatorKind::kDynamic});
  const std::vector<std::vector<int64_t>> expected = {{0}, {512}, {512}, {0, 512}, {256}};
  REQUIRE(placement.interval_offsets == expected);
  REQUIRE(placement.offsets == std::vector<int64_t>{0, 512, 512, 0, 256});
  REQUIRE(placement.pool_bytes == 3 * 256);
}

// position  0 1 2 3
//   a  1    =                segment 0
//   b  1    =                segment 1, beside it in the address space
//   c  2      =              blocks of two segments do not merge: segment 2
//   d  1        =            a's or b's: the lowest of equals
//   e  1        = =          the other; its second life takes the lowest again
//   f  2        =            segment 2 again, in one piece
TEST_CASE(
    "dynamic merges freed blocks within a segment only, and an item may move between its lifetimes",
    "[plan][allocator]") {
  const std::vector<Item> items = {MakeItem("a", 1, {{0, 1}}),         MakeItem("b", 1, {{0, 1}}),
                                   MakeItem("c", 2, {{1, 2}}),         MakeItem("d", 1, {{2, 3}}),
                                   MakeItem("e", 1, {{2, 3}, {3, 4}}), MakeItem("f", 2, {{2, 3}})};
  const Placement placement = PlanPool(items, {.kind = AllocatorKind::kDynamic});
  const std::vector<std::vector<int64_t>> expected = {{0}, {256}, {512}, {0}, {256, 0}, {512}};
  REQUIRE(placement.interval_offsets == expected);
  REQUIRE(placement.pool_bytes == 4 * 256);
  REQUIRE(placement.lower_bound == 4 * 256);
}

// Three blocks split from one segment, freed in the order middle, first, last, become one again.
TEST_CASE("dynamic merges a freed block with both neighbours", "[plan][allocator]") {
  const std::vector<Item> items = {MakeItem("whole", 3, {{0, 1}, {5, 6}}),
                                   MakeItem("x", 1, {{1, 3}}), MakeItem("y", 1, {{1, 2}}),
                                   MakeItem("z", 1, {{1, 4}})};
  const Placement placement = PlanPool(items, {.kind = AllocatorKind::kDynamic});
  const std::vector<std::vector<int64_t>> expected = {{0, 0}, {0}, {256}, {512}};
  REQUIRE(placement.interval_offsets == expected);
  REQUIRE(placement.pool_bytes == 3 * 256);
}

TEST_CASE("items that are no items are refused by name", "[plan][allocator]") {
  const auto message = [](Item item) {
    item.name = "culprit";
    return MessageOf(ErrorCode::kInternal, [&] {
      PlanPool({MakeItem("fine", 1, {{0, 1}}), item}, {});
    });
  };
  using Catch::Contains;
  CHECK_THAT(message(MakeItem("", 1, {})), Contains("culprit"));
  CHECK_THAT(message(MakeItem("", -1, {{0, 1}})), Contains("culprit") && Contains("-256 bytes"));
  CHECK_THAT(message(MakeItem("", 1, {{4, 4}})), Contains("culprit") && Contains("[4, 4)"));
  CHECK_THAT(message(MakeItem("", 1, {{0, 3}, {2, 5}})), Contains("culprit") && Contains("[2, 5)"));
  CHECK_THAT(message(MakeItem("", 1, {{6, 7}, {2, 5}})), Contains("culprit") && Contains("[2, 5)"));
}

TEST_CASE("VerifyPlacement agrees with trying every byte at every position", "[plan][allocator]") {
  std::mt19937 random(11);
  int valid = 0, invalid = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::vector<Item> items = RandomItems(random, 1 + Below(random, 8));
    const AllocatorKind kind =
        Below(random, 2) == 0 ? AllocatorKind::kPacked : AllocatorKind::kDynamic;
    Placement placement = PlanPool(items, {.kind = kind});
    // Move one item, or one interval of it, by a few blocks.
    const size_t i = static_cast<size_t>(Below(random, static_cast<int64_t>(items.size())));
    const int64_t by = (Below(random, 9) - 4) * kArenaAlignment;
    if (kind == AllocatorKind::kDynamic) {
      placement.interval_offsets[i][static_cast<size_t>(
          Below(random, static_cast<int64_t>(items[i].intervals.size())))] += by;
      placement.offsets[i] = placement.interval_offsets[i][0];
    } else {
      placement.offsets[i] += by;
    }
    const bool expected = BruteIsValid(items, placement);
    bool accepted = true;
    try {
      VerifyPlacement(items, placement);
    } catch (const Error& error) {
      REQUIRE(error.code() == ErrorCode::kInternal);
      accepted = false;
    }
    if (accepted != expected) FAIL("round " << round << ": accepted " << accepted);
    ++(expected ? valid : invalid);
  }
  REQUIRE(valid > 400);  // both verdicts occur often
  REQUIRE(invalid > 400);
}

TEST_CASE("VerifyPlacement names what is wrong", "[plan][allocator]") {
  const std::vector<Item> items = {MakeItem("left", 2, {{0, 4}}), MakeItem("right", 1, {{3, 5}})};
  Placement placement;
  placement.pool_bytes = 3 * 256;
  const auto message = [&](std::vector<int64_t> offsets) {
    placement.offsets = std::move(offsets);
    return MessageOf(ErrorCode::kInternal, [&] { VerifyPlacement(items, placement); });
  };
  using Catch::Contains;
  CHECK_THAT(message({0, 256}), Contains("left") && Contains("right") && Contains("[3, 5)"));
  CHECK_THAT(message({0, 520}), Contains("right") && Contains("520"));
  CHECK_THAT(message({512, 0}), Contains("left") && Contains("768"));
  CHECK_THAT(message({-256, 256}), Contains("left") && Contains("-256"));
  CHECK_THAT(message({0}), Contains("one offset per item"));
  placement.offsets = {0, 512};
  placement.interval_offsets = {{0}, {512, 512}};
  CHECK_THAT(MessageOf(ErrorCode::kInternal, [&] { VerifyPlacement(items, placement); }),
             Contains("right"));
  placement.interval_offsets.clear();
  REQUIRE_NOTHROW(VerifyPlacement(items, placement));
}

}  // namespace
}  // namespace millrace
