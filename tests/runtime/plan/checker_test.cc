// Plans by hand: what the checker proves, and what it says of each kind of mistake.
#include "runtime/plan/check/checker.h"

#include <catch2/catch.hpp>
#include <string>

#include "runtime/base/error.h"
#include "runtime/plan/schedule/stream_clock.h"
#include "tests/runtime/plan/checker_testing.h"
#include "tests/runtime/plan/edge_implied.h"
#include "tests/runtime/plan/hand_plan.h"

namespace millrace {
namespace {

using Catch::Matchers::Contains;
using test::HandPlan;
using test::kAlone;
using test::RequireProved;
using test::RequireViolation;

constexpr StreamId kC = StreamId::kCompute, kG = StreamId::kGather, kR = StreamId::kReduce;

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
    p.Copy(kC, p.Whole(a), p.Whole(b));
    RequireViolation(p.Done(), ViolationKind::kUndefined, "x reads a");
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

}  // namespace
}  // namespace millrace
