#include "runtime/plan/check/checker.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "runtime/base/error.h"
#include "runtime/plan/schedule/stream_clock.h"
#include "tests/runtime/plan/hand_plan.h"
#include "tests/support/plan_case.h"

namespace millrace {
namespace {

using Catch::Matchers::Contains;
using test::HandPlan;
using test::PlanCase;

constexpr StreamId kC = StreamId::kCompute, kG = StreamId::kGather, kR = StreamId::kReduce;
constexpr Mesh kAlone{1, 1};

// The first violation's kind and message.
Violation First(const StepPlan& plan, Mesh mesh = kAlone, int accumulate = 1) {
  const Violations found = FindViolations(plan, mesh, accumulate);
  return found.empty() ? Violation{ViolationKind::kStructure, "none"} : found.front();
}

void RequireProved(const StepPlan& plan, Mesh mesh = kAlone, int accumulate = 1) {
  const Violations found = FindViolations(plan, mesh, accumulate);
  INFO(First(plan, mesh, accumulate).message);
  REQUIRE(found.empty());
}

void RequireViolation(const StepPlan& plan, ViolationKind kind, const std::string& text,
                      Mesh mesh = kAlone, int accumulate = 1) {
  const Violation first = First(plan, mesh, accumulate);
  INFO(first.message);
  REQUIRE_THAT(first.message, Contains(text));
  REQUIRE(first.kind == kind);
}

// --- Plans by hand.

TEST_CASE("a copy chain over two streams is safe with its edges and racy without",
          "[plan][checker]") {
  HandPlan p;
  const BufferId weights = p.Master("weights"), a = p.Buffer("a", 1, {{0, 2}}),
                 b = p.Buffer("b", 2, {{1, 3}});
  const BufferId out = p.Buffer("out", 1, {{2, 3}});  // a's bytes again
  p.Copy(kG, p.Whole(weights), p.Whole(a));
  p.Copy(kC, p.Whole(a), p.Whole(b));
  p.Copy(kG, p.Whole(b), p.Whole(out));
  RequireProved(p.Done({{1, 0}, {2, 1}}));
  RequireViolation(p.Done({{2, 1}}), ViolationKind::kRace,
                   "x reads a without waiting for [step 1 microbatch 0] step 0");
  RequireViolation(p.Done({{1, 0}}), ViolationKind::kRace, "x reads b without waiting");
}

TEST_CASE("a fourth stream is proved like the others", "[plan][checker]") {
  constexpr StreamId kFourth{3};
  HandPlan p;
  const BufferId weights = p.Master("weights"), a = p.Buffer("a", 1, {{0, 2}}),
                 b = p.Buffer("b", 2, {{1, 3}});
  const BufferId out = p.Buffer("out", 1, {{2, 3}});  // a's bytes again
  p.Copy(kG, p.Whole(weights), p.Whole(a));
  p.Copy(kFourth, p.Whole(a), p.Whole(b));
  p.Copy(kC, p.Whole(b), p.Whole(out));
  RequireProved(p.Done({{1, 0}, {2, 1}}));
  RequireViolation(p.Done({{2, 1}}), ViolationKind::kRace,
                   "x reads a without waiting for [step 1 microbatch 0] step 0");
  RequireViolation(p.Done({{1, 0}}), ViolationKind::kRace, "x reads b without waiting");
  // Read on the fourth stream, and written over on another.
  HandPlan q;
  const BufferId w = q.Master("weights"), x = q.Buffer("x", 1, {{0, 3}}),
                 y = q.Buffer("y", 2, {{1, 3}});
  q.Copy(kC, q.Whole(w), q.Whole(x));
  q.Copy(kFourth, q.Whole(x), q.Whole(y));
  q.Copy(kC, q.Whole(w), q.Whole(x));
  RequireProved(q.Done({{1, 0}, {2, 1}}));
  RequireViolation(q.Done({{1, 0}}), ViolationKind::kRace, "which reads the same bytes");
  // Written by op 0 of all, which a clock filled with zeros takes for finished.
  HandPlan r;
  const BufferId from = r.Master("weights"), to = r.Buffer("to", 1, {{0, 2}}),
                 end = r.Buffer("end", 2, {{1, 2}});
  r.Copy(kFourth, r.Whole(from), r.Whole(to));
  r.Copy(kC, r.Whole(to), r.Whole(end));
  RequireProved(r.Done({{1, 0}}));
  RequireViolation(r.Done(), ViolationKind::kRace, "x reads to without waiting for [step 1 ");
  StepPlan beyond = q.Done({{1, 0}, {2, 1}});
  beyond.bodies[0].ops[1].stream = StreamId{kMostStreams};
  RequireViolation(beyond, ViolationKind::kStructure, "op 1 of body step is on stream 8, of 8");
}

TEST_CASE("reusing bytes waits for their readers on other streams", "[plan][checker]") {
  HandPlan p;
  const BufferId weights = p.Master("weights"), a = p.Buffer("a", 1, {{0, 2}}),
                 b = p.Buffer("b", 2, {{1, 2}});
  const BufferId c = p.Buffer("c", 1, {{2, 3}});  // a's bytes
  p.Copy(kG, p.Whole(weights), p.Whole(a));
  p.Copy(kC, p.Whole(a), p.Whole(b));
  p.Copy(kG, p.Whole(weights), p.Whole(c));
  RequireProved(p.Done({{1, 0}, {2, 1}}));
  RequireViolation(p.Done({{1, 0}}), ViolationKind::kRace,
                   "out writes c without waiting for [step 1 microbatch 0] step 1: compute cast "
                   "copy1, which reads");
}

TEST_CASE("order through a third stream counts", "[plan][checker]") {
  HandPlan p;
  const BufferId weights = p.Master("weights"), a = p.Buffer("a", 1, {{0, 3}}),
                 b = p.Buffer("b", 2, {{1, 2}}), c = p.Buffer("c", 3, {{2, 3}});
  p.Copy(kG, p.Whole(weights), p.Whole(a));
  p.Copy(kC, p.Whole(a), p.Whole(b));
  p.Copy(kR, p.Whole(a), p.Whole(c));
  RequireProved(p.Done({{1, 0}, {2, 1}}));  // 2 after 1 after 0
  const StepPlan both = p.Done({{1, 0}, {2, 0}, {2, 1}});
  RequireProved(both);
  REQUIRE(EdgeImplied(both, both.schedule, 0, 1));
  REQUIRE_FALSE(EdgeImplied(both, both.schedule, 0, 0));
  REQUIRE_FALSE(EdgeImplied(both, both.schedule, 0, 2));
}

TEST_CASE("a read needs every byte written in the same stay", "[plan][checker]") {
  HandPlan p;
  const BufferId weights = p.Master("weights"), a = p.Buffer("a", 1, {{0, 3}}),
                 b = p.Buffer("b", 2, {{0, 3}});
  SECTION("half is missing") {
    p.Copy(kC, p.Part(weights, 0, 32), p.Part(a, 0, 32));
    p.Copy(kC, p.Whole(a), p.Whole(b));
    RequireViolation(
        p.Done(), ViolationKind::kUndefined,
        "x reads a where nothing has written it since it became live; last written by the host "
        "(bytes [384, 512)");
  }
  SECTION("both halves are there") {
    p.Copy(kC, p.Part(weights, 0, 32), p.Part(a, 0, 32));
    p.Copy(kC, p.Part(weights, 32, 32), p.Part(a, 32, 32));
    p.Copy(kC, p.Whole(a), p.Whole(b));
    RequireProved(p.Done());
  }
  SECTION("contents do not outlive a stay, even when nobody overwrites them") {
    p.Copy(kC, p.Whole(weights), p.Whole(a));
    p.Copy(kC, p.Whole(weights), p.Whole(b));
    p.Copy(kC, p.Whole(a), p.Whole(b));
    p.plan.buffers[1].live = {{0, 1}, {2, 3}};
    RequireViolation(p.Done(), ViolationKind::kUndefined,
                     "reads a where nothing has written it since it became live");
  }
  SECTION("scratch is undefined afterwards") {
    MatmulOp<View> matmul;
    View square = p.Whole(weights);
    square.layout = DenseLayout(DType::kF32, {8, 8});
    matmul.a = matmul.b = square;
    matmul.out = square;
    matmul.out.buffer = b;
    matmul.scratch = p.Whole(a);
    p.Op(kC, matmul, "matmul");
    p.Copy(kC, p.Whole(a), p.Whole(b));
    RequireViolation(p.Done(), ViolationKind::kUndefined, "x reads a");
  }
  SECTION("a strided write does not fill its span") {
    CastOp<View> op;
    op.x = p.Part(weights, 0, 32);
    op.x.layout = DenseLayout(DType::kF32, {8, 4});
    op.out = p.Whole(a);
    op.out.layout = op.x.layout;
    op.out.layout.strides = {8, 1};
    p.Op(kC, op, "strided");
    RequireViolation(p.Done(), ViolationKind::kUndefined, "out reads a");
  }
}

TEST_CASE("what a step reads from before must come from prologue and step alike",
          "[plan][checker]") {
  HandPlan p;
  const BufferId weights = p.Master("weights"),
                 carried = p.Buffer("carried", 1, {{0, 1}, {1, 4}}, BufferScope::kCarried),
                 b = p.Buffer("b", 2, {{0, 1}});
  const auto build = [&](bool step_fills, bool prologue_fills) {
    HandPlan q = p;
    q.Copy(kC, q.Whole(carried), q.Whole(b));
    q.Copy(kG, q.Whole(weights), q.Whole(step_fills ? carried : b));
    StepPlan plan = q.Done({{1, 0}});
    plan.buffers[1].live = {{0, 1}, {1, 2}, {2, 3}};
    plan.buffers[2].live = {{0, 3}};
    Body prologue{"prologue", {}, 2};
    prologue.ops.push_back({plan.bodies[0].ops[1].op, kG, "fill", {}});
    std::get<CastOp<View>>(prologue.ops[0].op).out = q.Whole(prologue_fills ? carried : b);
    plan.bodies.push_back(prologue);
    plan.prologue = {{1, 0, {}}};
    return plan;
  };
  RequireProved(build(true, true));
  RequireViolation(build(true, false), ViolationKind::kUndefined,
                   "[step 1 microbatch 0] step 0: compute cast copy0: x reads carried");
  RequireViolation(build(false, true), ViolationKind::kUndefined,
                   "[step 2 microbatch 0] step 0: compute cast copy0: x reads carried");
}

TEST_CASE("weights are read in their latest version", "[plan][checker]") {
  HandPlan p;
  const BufferId weights = p.Master("weights"), m = p.Master("m"), v = p.Master("v"),
                 grad = p.Master("grad"), scalars = p.Master("scalars");
  const BufferId bucket = p.Buffer("bucket", 5, {{0, 3}}), b = p.Buffer("b", 6, {{0, 3}});
  AdamWOp<View> adamw;
  adamw.master = p.Whole(weights);
  adamw.m = p.Whole(m);
  adamw.v = p.Whole(v);
  adamw.grad = p.Whole(grad);
  adamw.scalars = p.Whole(scalars);
  adamw.decay = std::make_shared<const std::vector<Range>>();
  SECTION("gathered after the update") {
    p.Op(kC, adamw, "adamw");
    p.Copy(kC, p.Whole(weights), p.Whole(bucket));
    p.Copy(kC, p.Whole(bucket), p.Whole(b));
    RequireProved(p.Done());
  }
  SECTION("gathered before the update") {
    p.Copy(kC, p.Whole(weights), p.Whole(bucket));
    p.Op(kC, adamw, "adamw");
    p.Copy(kC, p.Whole(bucket), p.Whole(b));
    RequireViolation(p.Done(), ViolationKind::kStale,
                     "x reads bucket, made from weights before its latest update");
  }
}

TEST_CASE("an all-gather in place needs the rank's own slice", "[plan][checker]") {
  HandPlan p;
  const BufferId weights = p.Master("weights"), bucket = p.Buffer("bucket", 1, {{0, 3}}),
                 b = p.Buffer("b", 2, {{0, 3}});
  View slice = p.Part(bucket, 0, 32);
  slice.rank_stride = 32;
  AllGatherOp<View> gather;
  gather.full = p.Whole(bucket);
  const auto plan = [&](const View& filled) {
    HandPlan q = p;
    q.Copy(kG, q.Part(weights, 0, 32), filled);
    q.Op(kG, gather, "gather");
    q.Copy(kG, q.Whole(bucket), q.Whole(b));
    return q.Done();
  };
  const Mesh two{1, 2};
  RequireProved(plan(slice), two);
  View wrong = slice;
  wrong.rank_stride = 0;  // rank 1 fills rank 0's slice
  RequireViolation(plan(wrong), ViolationKind::kUndefined, "full reads bucket", two);
  wrong.rank_stride = 64;
  RequireViolation(plan(wrong), ViolationKind::kBounds,
                   "touches bytes [256, 384) of bucket, which has 256 (rank 1)", two);
  // The shard axis repeats per replica: ranks 2 and 3 of a 2 x 2 mesh fill the slices of ranks 0
  // and 1.
  RequireProved(plan(slice), {2, 2});
}

TEST_CASE("the ranks that stand for all are the corners of the axes named", "[plan][checker]") {
  const auto corners = [](const Mesh& mesh, AxisSet axes) { return CornerRanks(mesh, axes); };
  CHECK(corners({8, 8}, {}) == std::vector<int>{0});
  CHECK(corners({2, 2}, AxisSet::All()) == std::vector<int>{0, 1, 2, 3});
  CHECK(corners({2, 3}, Axis::kShard) == std::vector<int>{0, 1, 2});
  CHECK(corners({1, 64}, AxisSet::All()) == std::vector<int>{0, 32, 63});
  CHECK(corners({4, 8}, Axis::kReplicate) == std::vector<int>{0, 8, 16, 24});
  CHECK(corners({4, 8}, AxisSet::All()) == std::vector<int>{0, 7, 20, 24, 31});
  const Mesh all = Mesh(3, 3).With(Axis::kTensor, 3);
  CHECK(corners(all, {Axis::kShard, Axis::kTensor}) == std::vector<int>{0, 2, 4, 6, 8});
  CHECK(corners(all, AxisSet::All()) == std::vector<int>{0, 2, 6, 8, 13, 18, 20, 24, 26});
}

// Op 1 writes slot `replica` of four, op 0 slot 0, and op 2 reads slot `shard`: right on ranks 0, 8
// and 15 of a 4 x 4 mesh, the first, the middle and the last, and wrong on rank 3.
TEST_CASE("a plan that is wrong in one corner of two axes is found", "[plan][checker]") {
  HandPlan p;
  const BufferId weights = p.Master("weights"), a = p.Buffer("a", 1, {{0, 3}}),
                 b = p.Buffer("b", 2, {{0, 3}});
  View written = p.Part(a, 0, 16), read = p.Part(a, 0, 16);
  written.rank_stride = read.rank_stride = 16;
  written.rank_axes = Axis::kReplicate;
  p.Copy(kC, p.Part(weights, 0, 16), p.Part(a, 0, 16));
  p.Copy(kC, p.Part(weights, 0, 16), written);
  p.Copy(kC, read, p.Part(b, 0, 16));
  RequireProved(p.Done(), {4, 1});
  RequireViolation(p.Done(), ViolationKind::kUndefined, "rank 3", {4, 4});
}

TEST_CASE("structure: what needs no walk", "[plan][checker]") {
  HandPlan p;
  const BufferId weights = p.Master("weights"), a = p.Buffer("a", 1, {{0, 2}}),
                 b = p.Buffer("b", 2, {{1, 2}});
  p.Copy(kG, p.Whole(weights), p.Whole(a));
  p.Copy(kC, p.Whole(a), p.Whole(b));
  StepPlan plan = p.Done({{1, 0}});
  RequireProved(plan);
  SECTION("an edge to a later op") {
    plan.schedule[0].edges = {{0, 1, 0}};
    RequireViolation(plan, ViolationKind::kStructure, "edge 0 <- 0.1 waits for a later op");
  }
  SECTION("an edge from an op that does not exist") {
    plan.schedule[0].edges = {{0, 5, 1}};
    RequireViolation(plan, ViolationKind::kStructure,
                     "edge 1 <- 0.5 names an op that does not exist");
  }
  SECTION("an edge from a later entry") {
    plan.schedule[0].edges = {{1, 0, 1}};
    RequireViolation(plan, ViolationKind::kStructure,
                     "edge 1 <- 1.0 names an op that does not exist");
  }
  SECTION("an edge within a stream") {
    plan.bodies[0].ops[1].stream = kG;
    RequireViolation(plan, ViolationKind::kStructure, "joins two ops of one stream");
  }
  SECTION("a microbatch beyond the accumulation") {
    plan.schedule[0].microbatch = 1;
    RequireViolation(plan, ViolationKind::kStructure, "microbatch 1 of 1");
  }
  SECTION("a body at the wrong position") {
    plan.bodies[0].begin = 1;
    RequireViolation(plan, ViolationKind::kStructure, "body step begins at position 1");
  }
  SECTION("two live buffers share bytes") {
    plan.buffers[2].offsets = {256};
    RequireViolation(plan, ViolationKind::kOverlap, "are both live at position 1");
  }
  SECTION("a buffer outside the arena") {
    plan.buffers[2].offsets = {512 + 256};
    RequireViolation(plan, ViolationKind::kBounds,
                     "b at [768, 1024) leaves its part of the arena, [256, 768)");
  }
  SECTION("a buffer among the persistent ones") {
    plan.buffers[2].offsets = {0};
    RequireViolation(plan, ViolationKind::kBounds, "b at [0, 256) leaves its part");
  }
  SECTION("an access outside the live range") {
    plan.buffers[1].live = {{0, 1}};
    RequireViolation(plan, ViolationKind::kLifetime,
                     "x touches a at position 1, where it is not live");
  }
  SECTION("a view beyond its buffer") {
    std::get<CastOp<View>>(plan.bodies[0].ops[1].op).out.offset = 1;
    RequireViolation(plan, ViolationKind::kBounds,
                     "out touches bytes [4, 260) of b, which has 256");
  }
  SECTION("stays of a bucket apart") {
    plan.buffers[1].group = plan.buffers[2].group = 7;
    RequireViolation(plan, ViolationKind::kSticky, "a at 256 and b at 512 are stays of one bucket");
  }
  SECTION("operands that overlap in part") {
    auto& cast = std::get<CastOp<View>>(plan.bodies[0].ops[1].op);
    cast.x = p.Part(a, 0, 32);
    cast.out = p.Part(a, 16, 32);
    RequireViolation(plan, ViolationKind::kOverlap, "out overlaps x in part");
  }
  SECTION("CheckPlan throws with the message") {
    plan.schedule[0].edges.clear();
    try {
      CheckPlan(plan, kAlone, 1);
      FAIL("not refused");
    } catch (const Error& error) {
      REQUIRE(error.code() == ErrorCode::kInternal);
      REQUIRE_THAT(error.what(), Contains("the train plan is not safe to run") &&
                                     Contains("without waiting for"));
    }
  }
}

TEST_CASE("a collective's sizes fit its group", "[plan][checker]") {
  HandPlan p;
  const BufferId full = p.Master("full"), a = p.Buffer("a", 1, {{0, 2}});
  ReduceScatterOp<View> reduce;
  reduce.full = p.Whole(full);
  reduce.shard = p.Part(a, 0, 32);
  p.Op(kR, reduce, "reduce");
  reduce.shard = p.Part(a, 32, 32);
  p.Op(kR, reduce, "reduce");
  const StepPlan plan = p.Done();
  RequireProved(plan, {1, 2});
  RequireViolation(plan, ViolationKind::kCollective, "full 64 against shard 32 over 4 ranks",
                   {1, 4});
}

// --- Real plans, made wrong.

std::vector<PlanCase> Cases() {
  std::vector<PlanCase> cases;
  PlanCase c;
  c.mesh = {1, 2};
  c.options.accumulate = 3;
  cases.push_back(c);  // per-gather f32, direct, sync last
  c.precision = test::Mixed(DType::kF32, DType::kBF16, DType::kF32);
  c.options.downcast = Downcast::kAfterGather;
  c.options.grad_sync = GradSync::kEvery;
  c.options.grad_concat = GradConcat::kEvery;
  c.options.allocator = AllocatorKind::kMaxPool;
  c.options.accumulate = 2;
  cases.push_back(c);
  c.model = test::TinyLlama(4);
  c.mesh = {2, 2};
  c.precision = test::Mixed(DType::kBF16, DType::kF32, DType::kBF16);
  c.options.downcast = Downcast::kAfterUpdate;
  c.options.grad_sync = GradSync::kLast;
  c.options.grad_concat = GradConcat::kLast;
  c.options.allocator = AllocatorKind::kDynamic;
  c.options.prefetch = 2;
  c.options.slots = 3;
  c.options.accumulate = 3;
  cases.push_back(c);
  c.options.reshard = Reshard::kAfterBackward;
  c.options.downcast = Downcast::kPerGather;
  c.options.allocator = AllocatorKind::kColoured;
  c.options.accumulate = 1;
  c.recompute = Recompute::kBlock;
  cases.push_back(c);
  c.options.reshard = Reshard::kNever;
  c.options.prefetch = 0;
  c.options.accumulate = 3;
  cases.push_back(c);
  c.mesh = {1, 1};
  cases.push_back(c);
  return cases;
}

TEST_CASE("every derived edge is needed", "[plan][checker]") {
  int edges = 0;
  for (const PlanCase& c : Cases()) {
    StepPlan plan = test::PlanOf(c);
    RequireProved(plan, c.mesh, c.options.accumulate);
    for (auto* schedule : {&plan.schedule, &plan.prologue}) {
      for (size_t e = 0; e < schedule->size(); ++e) {
        const std::vector<Edge> all = (*schedule)[e].edges;
        for (size_t i = 0; i < all.size(); ++i, ++edges) {
          if (EdgeImplied(plan, *schedule, static_cast<int>(e), static_cast<int>(i))) continue;
          std::vector<Edge>& left = (*schedule)[e].edges;
          left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
          INFO(ToString(c) << ": entry " << e << " edge " << all[i].to_op << " <- "
                           << all[i].from_entry << "." << all[i].from_op);
          const Violations found = FindViolations(plan, c.mesh, c.options.accumulate, 1);
          REQUIRE(!found.empty());
          REQUIRE(found.front().kind == ViolationKind::kRace);
          left = all;
        }
      }
    }
  }
  REQUIRE(edges > 100);
}

// Positions at which an op touches the buffer.
std::vector<int64_t> AccessesOf(const StepPlan& plan, int32_t buffer) {
  std::vector<int64_t> positions;
  for (const Body& body : plan.bodies)
    for (size_t o = 0; o < body.ops.size(); ++o)
      ForEachUse(body.ops[o].op, [&](const View& view, Access, std::string_view) {
        if (view.buffer.value == buffer) positions.push_back(body.begin + static_cast<int64_t>(o));
      });
  return positions;
}

TEST_CASE("a live range one op shorter is reported", "[plan][checker]") {
  int shortened = 0;
  for (const PlanCase& c : Cases()) {
    const StepPlan plan = test::PlanOf(c);
    for (size_t b = 0; b < plan.buffers.size(); ++b) {
      const PlanBuffer& buffer = plan.buffers[b];
      const std::vector<int64_t> accesses = AccessesOf(plan, static_cast<int32_t>(b));
      for (size_t i = 0; i < buffer.live.size(); ++i) {
        const Interval live = buffer.live[i];
        const bool seam_begin =
            std::any_of(plan.bodies.begin(), plan.bodies.end(),
                        [&](const Body& body) { return body.begin == live.begin; });
        for (const bool at_end : {false, true}) {
          StepPlan shorter = plan;
          Interval& range = shorter.buffers[b].live[i];
          if (at_end) {
            // A reduction in flight reserves its bucket beyond the last access; the
            // reserve is no claim of the checker. Carried buffers are held to the end of
            // the body for the next one.
            const auto last = std::lower_bound(accesses.begin(), accesses.end(), live.end);
            if (last == accesses.begin()) continue;
            if (buffer.scope != BufferScope::kCarried) range.end = *(last - 1) + 1;
            --range.end;
          } else {
            ++range.begin;
          }
          if (range.begin >= range.end && shorter.buffers[b].offsets.size() == 1) {
            shorter.buffers[b].live.erase(shorter.buffers[b].live.begin() +
                                          static_cast<std::ptrdiff_t>(i));
          }
          // A carried stay of the dynamic allocator is live always and has slack
          // where the others are not live.
          if (buffer.scope == BufferScope::kCarried &&
              c.options.allocator == AllocatorKind::kDynamic)
            continue;
          INFO(ToString(c) << ": " << buffer.name << " [" << live.begin << ", " << live.end << ") "
                           << (at_end ? "end" : "begin") << " seam " << seam_begin);
          REQUIRE(!FindViolations(shorter, c.mesh, c.options.accumulate, 1).empty());
          ++shortened;
        }
      }
    }
  }
  REQUIRE(shortened > 500);
}

// Applies `change` to every op that `wanted` accepts, one at a time, and
// requires that each is reported.
template <class Wanted, class Change>
int RequireEachReported(const PlanCase& c, Wanted&& wanted, Change&& change) {
  const StepPlan plan = test::PlanOf(c);
  int changed = 0;
  for (size_t b = 0; b < plan.bodies.size(); ++b) {
    for (size_t o = 0; o < plan.bodies[b].ops.size(); ++o) {
      if (!wanted(plan.bodies[b].ops[o])) continue;
      StepPlan wrong = plan;
      change(wrong.bodies[b].ops[o]);
      INFO(ToString(c) << ": " << plan.bodies[b].name << " "
                       << Describe(plan.bodies[b].ops[o], plan));
      REQUIRE(!FindViolations(wrong, c.mesh, c.options.accumulate, 1).empty());
      ++changed;
    }
  }
  return changed;
}

// Padded rows of a table are zeroed, then written with the rest of its gradient: only what lies
// between parameters depends on the zeroing.
bool ZeroesBetweenParams(const ZeroRangesOp<View>& op, const std::string& label,
                         const ShardLayout& layout) {
  for (const FlatParam& flat : layout.flats) {
    if (label != "zero_gaps/" + flat.name) continue;
    for (const Range& range : *op.ranges)
      if (std::none_of(flat.params.begin(), flat.params.end(), [&](ParamId id) {
            return layout.param(id).begin <= range.begin && range.end <= layout.param(id).end;
          }))
        return true;
  }
  return false;
}

TEST_CASE("a gather, cast or zeroing that does nothing is reported", "[plan][checker]") {
  int dropped = 0;
  for (const PlanCase& c : Cases()) {
    // There a carried bucket has bytes of its own: gathering unchanged weights again changes
    // nothing.
    if (c.options.allocator == AllocatorKind::kDynamic) continue;
    dropped += RequireEachReported(
        c,
        [layout = test::LayoutOf(c)](const PlanOp& op) {
          if (const auto* zero = std::get_if<ZeroRangesOp<View>>(&op.op))
            return ZeroesBetweenParams(*zero, op.label, layout);
          // It overwrites bytes that hold a gradient already: to leave it out is
          // wrong, but not undefined.
          if (op.label.starts_with("outer_cast/")) return false;
          if (const auto* concat = std::get_if<ConcatOp<View>>(&op.op))
            return concat->update == Update::kOverwrite;
          return std::holds_alternative<AllGatherOp<View>>(op.op) ||
                 std::holds_alternative<CastOp<View>>(op.op) ||
                 std::holds_alternative<ReduceScatterOp<View>>(op.op);
        },
        [](PlanOp& op) {
          BeginStepOp<View> nothing;  // no operand: touches nothing
          op.op = nothing;
        });
  }
  REQUIRE(dropped > 100);
}

// A prologue begins and ends with all streams joined, and has nothing on the compute stream.
TEST_CASE("a collective on another stream is reported unless nothing there can tell",
          "[plan][checker]") {
  for (const PlanCase& c : Cases()) {
    if (c.mesh.world() == 1) continue;
    const StepPlan plan = test::PlanOf(c);
    std::set<std::string> prologue;
    for (const Entry& entry : plan.prologue)
      for (const PlanOp& op : plan.bodies[static_cast<size_t>(entry.body)].ops)
        prologue.insert(Describe(op, plan));
    const int moved = RequireEachReported(
        c,
        [&](const PlanOp& op) {
          return IsCollective(op.op) && !prologue.contains(Describe(op, plan));
        },
        [](PlanOp& op) { op.stream = StreamId::kCompute; });
    REQUIRE(moved > 10);
  }
}

TEST_CASE("a bucket moved onto another live buffer is reported", "[plan][checker]") {
  const PlanCase c = Cases().front();
  const StepPlan plan = test::PlanOf(c);
  int moved = 0;
  for (size_t a = 0; a < plan.buffers.size(); ++a) {
    for (size_t b = 0; b < plan.buffers.size(); ++b) {
      const PlanBuffer &from = plan.buffers[a], &to = plan.buffers[b];
      if (a == b || from.live.empty() || to.live.empty() || from.bytes == 0 || to.bytes == 0)
        continue;
      if (from.scope == BufferScope::kPersistent || to.scope == BufferScope::kPersistent) continue;
      const bool together = std::any_of(from.live.begin(), from.live.end(), [&](const Interval& x) {
        return std::any_of(to.live.begin(), to.live.end(),
                           [&](const Interval& y) { return x.begin < y.end && y.begin < x.end; });
      });
      if (!together) continue;
      StepPlan wrong = plan;
      wrong.buffers[a].offsets = wrong.buffers[b].offsets;
      INFO(from.name << " onto " << to.name);
      REQUIRE(!FindViolations(wrong, c.mesh, c.options.accumulate, 1).empty());
      ++moved;
    }
  }
  REQUIRE(moved > 100);
}

TEST_CASE("an update that does not gather for the next step is reported as stale",
          "[plan][checker]") {
  PlanCase c;
  c.mesh = {1, 2};
  c.options.prefetch = 2;
  c.options.slots = 3;
  StepPlan plan = test::PlanOf(c);
  Body& update = *std::find_if(plan.bodies.begin(), plan.bodies.end(),
                               [](const Body& body) { return body.name == "update"; });
  int found = 0;
  for (PlanOp& op : update.ops) {
    if (op.stream != StreamId::kGather) continue;
    op.op = BeginStepOp<View>{};
    ++found;
  }
  REQUIRE(found == 2);
  const Violations violations = FindViolations(plan, c.mesh, 1);
  REQUIRE(!violations.empty());
  REQUIRE_THAT(violations.front().message,
               Contains("[step 2 microbatch 0]") && Contains("bucket/embed"));
}

TEST_CASE("logits survive until the host reads them", "[plan][checker]") {
  PlanCase c;
  c.kind = "generate";
  StepPlan plan = test::PlanOf(c);
  RequireProved(plan);
  PlanBuffer& logits = plan.buffers[static_cast<size_t>(plan.FindOutput("logits")->buffer.value)];
  logits.live = {{logits.live[0].begin, plan.bodies[0].end() - 1}};
  REQUIRE(!FindViolations(plan, kAlone, 1).empty());
}

}  // namespace
}  // namespace millrace
