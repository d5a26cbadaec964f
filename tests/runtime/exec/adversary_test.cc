// The adversary and the shadow memory, on plans by hand and on real steps over the CPU kernels.
#include "runtime/exec/checked/adversary.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <set>
#include <vector>

#include "runtime/base/error.h"
#include "tests/runtime/plan/hand_plan.h"
#include "tests/support/engine_case.h"

namespace millrace {
namespace {

using Catch::Matchers::Contains;
using test::HandPlan;
using test::PlanCase;

constexpr StreamId kC = StreamId::kCompute, kG = StreamId::kGather;
constexpr Mesh kAlone{1, 1};

// Gather into `a`, compute from it into `b`, gather into `c`, which has a's bytes, compute from
// `c`.
struct Reuse : HandPlan {
  BufferId w = Master("w"), a = Buffer("a", 1, {{0, 2}}), b = Buffer("b", 2, {{1, 4}}),
           c = Buffer("c", 1, {{2, 4}});
  Reuse() {
    Copy(kG, Whole(w), Whole(a));
    Copy(kC, Whole(a), Whole(b));
    Copy(kG, Whole(w), Whole(c));
    Copy(kC, Whole(c), Whole(b));
  }
};

// Runs the copies of a hand-written plan on real bytes.
struct Arena {
  explicit Arena(const StepPlan& plan)
      : bytes(static_cast<size_t>(plan.arena_bytes), std::byte{1}) {}
  void Copy(const StepPlan& plan, int op) {
    const auto& cast = std::get<CastOp<View>>(plan.bodies[0].ops[static_cast<size_t>(op)].op);
    const auto at = [&](const View& view) {
      return bytes.data() + plan.buffer(view.buffer).OffsetAt(op) + 4 * view.offset;
    };
    std::memcpy(at(cast.out), at(cast.x), static_cast<size_t>(cast.x.layout.span_bytes()));
  }
  std::vector<std::byte> bytes;
};

void RunAdversary(const StepPlan& plan, uint64_t seed) {
  Arena arena(plan);
  Adversary adversary(plan, kAlone, 0, arena.bytes.data(), seed);
  adversary.Run(plan.prologue, [](const Entry&, int, int) {});
  for (int step = 0; step < 2; ++step)
    adversary.Run(plan.schedule, [&](const Entry&, int, int op) { arena.Copy(plan, op); });
}

TEST_CASE("orders keep streams and edges, and use the freedom that is left", "[exec][adversary]") {
  HandPlan p;
  const BufferId w = p.Master("w"), a = p.Buffer("a", 1, {{0, 100}}),
                 b = p.Buffer("b", 2, {{0, 100}});
  for (int i = 0; i < 4; ++i) p.Copy(kG, p.Whole(w), p.Whole(a));
  for (int i = 0; i < 4; ++i) p.Copy(kC, p.Whole(w), p.Whole(b));
  const StepPlan plan = p.Done({{5, 2}});  // the second compute op waits for the third gather
  std::set<std::vector<int>> orders;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::vector<int> order, place(8);
    for (const OpRef& ref : RandomOrder(plan, plan.schedule, seed)) order.push_back(ref.op);
    REQUIRE(order.size() == 8);
    for (size_t i = 0; i < 8; ++i) place[static_cast<size_t>(order[i])] = static_cast<int>(i);
    for (const size_t first : {0, 4})
      for (size_t i = first; i < first + 3; ++i) REQUIRE(place[i] < place[i + 1]);
    REQUIRE(place[2] < place[5]);
    orders.insert(order);
    std::vector<int> again;
    for (const OpRef& ref : RandomOrder(plan, plan.schedule, seed)) again.push_back(ref.op);
    REQUIRE(again == order);  // the same on every rank
  }
  // 3 or 4 gathers before the second compute op: 4 + 5 places of the first one, and what follows.
  REQUIRE(orders.size() > 12);
}

TEST_CASE("edges that go round in a circle are an error, not a hang", "[exec][adversary]") {
  HandPlan p;
  const BufferId w = p.Master("w"), a = p.Buffer("a", 1, {{0, 2}});
  p.Copy(kG, p.Whole(w), p.Whole(a));
  p.Copy(kC, p.Whole(w), p.Whole(w));
  const StepPlan plan = p.Done({{0, 1}, {1, 0}});
  REQUIRE_THROWS_WITH(RandomOrder(plan, plan.schedule, 1),
                      Contains("after 0 of 2 ops every stream waits for another"));
}

TEST_CASE("bytes change hands in any order that the edges allow", "[exec][adversary]") {
  Reuse p;
  const StepPlan plan = p.Done({{1, 0}, {2, 1}, {3, 2}});
  for (uint64_t seed = 0; seed < 50; ++seed) RunAdversary(plan, seed);
}

// The message of the first failure over seeds; "" when none fails.
std::string FirstFailure(const StepPlan& plan, const std::string& wanted) {
  std::string other;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    try {
      RunAdversary(plan, seed);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal &&
          std::string(error.what()).find(wanted) != std::string::npos)
        return error.what();
      other = error.what();
    }
  }
  return other;
}

TEST_CASE("a slot reused before its reader has run is caught, with the owner's name",
          "[exec][adversary]") {
  Reuse p;
  const std::string wanted = "out touches c at bytes [256, 512), which still belong to a";
  REQUIRE_THAT(FirstFailure(p.Done({{1, 0}, {3, 2}}), wanted),
               Contains("gather cast copy2") && Contains(wanted));
}

TEST_CASE("a read before its writer is caught", "[exec][adversary]") {
  Reuse p;
  const std::string wanted = "x reads a, whose bytes [256, 512) nothing has written";
  REQUIRE_THAT(FirstFailure(p.Done({{2, 1}, {3, 2}}), wanted),
               Contains("compute cast copy1") && Contains(wanted));
}

TEST_CASE("free bytes are poisoned, and a stray write into them is caught", "[exec][shadow]") {
  Reuse p;
  const StepPlan plan = p.Done({{1, 0}, {2, 1}, {3, 2}});
  Arena arena(plan);
  Shadow shadow(plan, kAlone, 0, ArenaView(arena.bytes.data()));
  shadow.Begin(plan.prologue);
  shadow.End();
  const auto poisoned = [&](int64_t begin, int64_t end) {
    return std::all_of(arena.bytes.begin() + begin, arena.bytes.begin() + end,
                       [](std::byte b) { return b == kPoison; });
  };
  REQUIRE(poisoned(256, 768));
  REQUIRE(arena.bytes[0] == std::byte{1});  // the persistent state is nobody's to poison
  shadow.Begin(plan.schedule);
  for (const int op : {0, 1}) {
    shadow.Before(0, op);
    arena.Copy(plan, op);
    REQUIRE_FALSE(poisoned(256, 512));
    shadow.After(0, op);
  }
  REQUIRE(poisoned(256, 512));        // a is dead
  REQUIRE_FALSE(poisoned(512, 768));  // b is not
  SECTION("nobody writes there") {
    for (const int op : {2, 3}) {
      shadow.Before(0, op);
      arena.Copy(plan, op);
      shadow.After(0, op);
    }
    shadow.End();
    REQUIRE(poisoned(256, 768));
  }
  SECTION("somebody does") {
    arena.bytes[300] = std::byte{7};
    REQUIRE_THROWS_WITH(
        shadow.Before(0, 2),
        Contains(
            "byte 300 of the arena, about to become c's, was written while it belonged to nobody"));
  }
  SECTION("the schedule ends early") {
    REQUIRE_THROWS_WITH(shadow.End(), Contains("ops of the schedule that did not run"));
  }
}

TEST_CASE("a read while some columns are not written is caught", "[exec][shadow]") {
  HandPlan p;
  const bool apart = GENERATE(false, true);  // two stays, of some columns each
  const BufferId w = p.Master("w"), a = p.Buffer("a", 1, {{0, apart ? 1 : 3}}),
                 b = p.Buffer("b", 2, {{0, 3}});
  if (apart) {
    p.plan.buffers[static_cast<size_t>(a.value)].live.push_back({1, 3});
    p.plan.buffers[static_cast<size_t>(a.value)].offsets.push_back(256);
  }
  for (const int64_t first : {0, 5}) {
    View columns = p.Part(a, first, 0);
    columns.layout = DenseLayout(DType::kF32, {8, first == 0 ? 5 : 3});
    View x = p.Part(w, 0, 0);
    x.layout = columns.layout;
    columns.layout.strides[0] = 8;
    p.Copy(kC, x, columns);
  }
  p.Copy(kC, p.Part(a, 8, 32), p.Part(b, 0, 32));  // rows in which both have columns
  const StepPlan plan = p.Done();
  Arena arena(plan);
  Shadow shadow(plan, kAlone, 0, ArenaView(arena.bytes.data()));
  shadow.Begin(plan.prologue);
  shadow.End();
  for (int run = 0; run < 2; ++run) {  // nothing is left of the first
    shadow.Begin(plan.schedule);
    for (const int op : {0, 1}) {
      shadow.Before(0, op);
      if (!apart) REQUIRE_THROWS_WITH(shadow.Before(0, 2), Contains("x reads a before bytes"));
      shadow.After(0, op);
    }
    if (apart) {
      REQUIRE_THROWS_WITH(shadow.Before(0, 2), Contains("x reads a before bytes"));
      return;
    }
    shadow.Before(0, 2);
    shadow.After(0, 2);
    shadow.End();
  }
}

// --- Real steps.

std::vector<PlanCase> Cases() {
  std::vector<PlanCase> cases;
  PlanCase c;
  c.options.learning_rate.lr = 1e-2;
  c.options.clip = 1;
  c.options.accumulate = 2;
  c.options.comm_scratch_bytes = 1 << 21;
  cases.push_back(c);
  c.mesh = {1, 2};
  c.options.accumulate = 3;
  cases.push_back(c);
  c.model = test::TinyLlama(4);
  c.mesh = {1, 3};
  c.precision = test::Mixed(DType::kF32, DType::kF32, DType::kBF16);
  c.options.downcast = Downcast::kAfterGather;
  c.options.grad_sync = GradSync::kEvery;
  c.options.prefetch = 2;
  c.options.slots = 3;
  c.options.allocator = AllocatorKind::kDynamic;
  cases.push_back(c);
  c.mesh = {2, 2};
  c.options.downcast = Downcast::kAfterUpdate;
  c.options.grad_sync = GradSync::kLast;
  c.options.grad_concat = GradConcat::kLast;
  c.options.allocator = AllocatorKind::kMaxPool;
  c.options.reduce_depth = 0;
  c.recompute = Recompute::kBlock;
  cases.push_back(c);
  c.options.overlap_weight_gradients = true;
  cases.push_back(c);
  c.mesh = {1, 1};
  c.options.allocator = AllocatorKind::kPacked;
  cases.push_back(c);
  return cases;
}

TEST_CASE("a step gives the same bits in any order and when checked", "[exec][adversary]") {
  for (const PlanCase& c : Cases()) {
    INFO(ToString(c));
    EngineOptions options;
    options.graph = GraphMode::kOff;
    const std::string base = test::TrainedBits(c, options, 3);
    for (const uint64_t seed : {1, 2, 3}) {
      options.adversary_seed = seed;
      REQUIRE(test::TrainedBits(c, options, 3) == base);
    }
    options.adversary_seed.reset();
    options.checked = true;
    REQUIRE(test::TrainedBits(c, options, 3) == base);
  }
}

}  // namespace
}  // namespace millrace
