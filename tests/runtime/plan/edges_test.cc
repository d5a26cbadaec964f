#include "runtime/plan/schedule/edges.h"

#include <catch2/catch.hpp>

#include "runtime/plan/schedule/stream_clock.h"
#include "tests/runtime/plan/hand_plan.h"
#include "tests/support/plan_case.h"

namespace millrace {
namespace {

using test::HandPlan;

constexpr StreamId kC = StreamId::kCompute, kG = StreamId::kGather, kR = StreamId::kReduce;
constexpr Mesh kAlone{1, 1};

std::vector<Edge> Derived(StepPlan plan, Mesh mesh = kAlone) {
  DeriveEdges(plan, mesh, 1);
  return plan.schedule[0].edges;
}

// Three buffers that are live always, at addresses of their own.
struct Three : HandPlan {
  BufferId w = Master("w"), a = Buffer("a", 1, {{0, 100}}), b = Buffer("b", 2, {{0, 100}}),
           c = Buffer("c", 3, {{0, 100}});
};

TEST_CASE("read after write, write after read, write after write", "[plan][edges]") {
  Three p;
  p.Copy(kG, p.Whole(p.w), p.Whole(p.a));
  SECTION("a reader waits for the writer") {
    p.Copy(kC, p.Whole(p.a), p.Whole(p.b));
    REQUIRE(Derived(p.Done()) == std::vector<Edge>{{0, 0, 1}});
  }
  SECTION("a writer waits for the writer") {
    p.Copy(kC, p.Whole(p.w), p.Whole(p.a));
    REQUIRE(Derived(p.Done()) == std::vector<Edge>{{0, 0, 1}});
  }
  SECTION("a writer waits for the reader, which implies the writer before") {
    p.Copy(kC, p.Whole(p.a), p.Whole(p.b));
    p.Copy(kR, p.Whole(p.w), p.Whole(p.a));
    REQUIRE(Derived(p.Done()) == std::vector<Edge>{{0, 0, 1}, {0, 1, 2}});
  }
  SECTION("two readers on two streams both count") {
    p.Copy(kC, p.Whole(p.a), p.Whole(p.b));
    p.Copy(kR, p.Whole(p.a), p.Whole(p.c));
    p.Copy(kG, p.Whole(p.w), p.Whole(p.a));
    REQUIRE(Derived(p.Done()) == std::vector<Edge>{{0, 0, 1}, {0, 0, 2}, {0, 2, 3}, {0, 1, 3}});
  }
  SECTION("readers do not wait for each other") {
    p.Copy(kG, p.Whole(p.a), p.Whole(p.b));
    p.Copy(kG, p.Whole(p.w), p.Whole(p.c));
    REQUIRE(Derived(p.Done()).empty());
  }
}

TEST_CASE("streams order themselves, and a wait is not repeated", "[plan][edges]") {
  Three p;
  p.Copy(kG, p.Whole(p.w), p.Whole(p.a));  // 0
  p.Copy(kG, p.Whole(p.w), p.Whole(p.b));  // 1
  p.Copy(kC, p.Whole(p.b), p.Whole(p.c));  // 2 waits for 1
  p.Copy(kC, p.Whole(p.a), p.Whole(p.c));  // 3: 0 came before 1
  REQUIRE(Derived(p.Done()) == std::vector<Edge>{{0, 1, 2}});
}

TEST_CASE("only bytes in common count", "[plan][edges]") {
  Three p;
  p.Copy(kG, p.Part(p.w, 0, 32), p.Part(p.a, 0, 32));   // 0
  p.Copy(kR, p.Part(p.w, 0, 32), p.Part(p.a, 32, 32));  // 1
  p.Copy(kC, p.Part(p.a, 0, 16), p.Part(p.b, 0, 16));   // 2: of 0
  p.Copy(kC, p.Part(p.a, 40, 8), p.Part(p.b, 16, 8));   // 3: of 1
  REQUIRE(Derived(p.Done()) == std::vector<Edge>{{0, 0, 2}, {0, 1, 3}});
}

TEST_CASE("reused bytes are the same bytes whatever their buffer", "[plan][edges]") {
  HandPlan p;
  const BufferId w = p.Master("w"), a = p.Buffer("a", 1, {{0, 2}}), b = p.Buffer("b", 2, {{0, 3}}),
                 again = p.Buffer("again", 1, {{2, 3}});
  p.Copy(kG, p.Whole(w), p.Whole(a));
  p.Copy(kC, p.Whole(a), p.Whole(b));
  p.Copy(kG, p.Whole(w), p.Whole(again));
  REQUIRE(Derived(p.Done()) == std::vector<Edge>{{0, 0, 1}, {0, 1, 2}});
}

TEST_CASE("a slice per rank conflicts with every rank's reader, within its axis", "[plan][edges]") {
  HandPlan p;
  const BufferId w = p.Master("w"), bucket = p.Buffer("bucket", 1, {{0, 100}}),
                 beyond = p.Buffer("beyond", 2, {{0, 100}});
  View slice = p.Part(bucket, 0, 32);
  slice.rank_stride = 32;
  p.Copy(kC, p.Part(w, 0, 32), p.Part(bucket, 32, 32));  // read by rank 1's slice only
  p.Copy(kC, p.Part(w, 0, 32), p.Part(beyond, 0, 32));
  p.Copy(kG, p.Part(w, 0, 32), slice);
  // The same for all ranks of a 2 x 2 mesh: the slice ends with the bucket, so
  // `beyond`, op 1, is not waited for.
  REQUIRE(Derived(p.Done(), {2, 2}) == std::vector<Edge>{{0, 0, 2}});
}

TEST_CASE("cells of a rank's own row conflict with themselves only", "[plan][edges]") {
  HandPlan p;
  const BufferId w = p.Master("w"), stats = p.Master("stats"), a = p.Buffer("a", 2, {{0, 100}});
  const auto cell = [&](int64_t column) {
    View view = p.Part(stats, column, 1);
    view.rank_stride = 16;  // 4 ranks, rows of 16
    view.rank_axes = AxisSet::All();
    return view;
  };
  p.Copy(kC, p.Part(w, 0, 1), cell(0));
  p.Copy(kR, p.Part(w, 0, 1), cell(1));
  p.Copy(kC, cell(0), p.Part(a, 0, 1));
  p.Copy(kC, cell(1), p.Part(a, 1, 1));
  REQUIRE(Derived(p.Done(), {1, 4}) == std::vector<Edge>{{0, 1, 3}});
  p.Copy(kG, p.Whole(stats), p.Whole(a));  // all rows
  REQUIRE(Derived(p.Done(), {1, 4}) == std::vector<Edge>{{0, 1, 3}, {0, 3, 4}});
}

TEST_CASE("cells by rank over different axes are no rows", "[plan][edges]") {
  HandPlan p;
  const BufferId w = p.Master("w"), cells = p.Master("cells");
  View by_shard = p.Part(cells, 0, 1), by_replica = p.Part(cells, 1, 1);
  by_shard.rank_stride = by_replica.rank_stride = 16;
  by_replica.rank_axes = Axis::kReplicate;
  by_replica.offset = 0;
  p.Copy(kG, p.Part(w, 0, 1), by_shard);
  p.Copy(kC, p.Part(w, 0, 1), by_replica);  // the same cell where both coordinates are equal
  REQUIRE(Derived(p.Done(), {2, 2}) == std::vector<Edge>{{0, 0, 1}});
}

TEST_CASE("a fourth stream waits, and is waited for, like the others", "[plan][edges]") {
  constexpr StreamId kFourth{3};
  Three p;
  p.Copy(kC, p.Whole(p.w), p.Whole(p.a));       // 0
  p.Copy(kFourth, p.Whole(p.a), p.Whole(p.b));  // 1 waits for 0
  p.Copy(kR, p.Whole(p.b), p.Whole(p.c));       // 2 waits for 1
  p.Copy(kG, p.Whole(p.w), p.Whole(p.b));       // 3 waits for 2, which implies 1
  REQUIRE(Derived(p.Done()) == std::vector<Edge>{{0, 0, 1}, {0, 1, 2}, {0, 2, 3}});
  p.Copy(StreamId{kMostStreams}, p.Whole(p.w), p.Whole(p.b));
  REQUIRE_THROWS_WITH(Derived(p.Done()),
                      Catch::Contains("copy4 of body step is on stream 8, of 8"));
}

// Op 0 is what a clock filled with zeros takes for finished.
TEST_CASE("a fourth stream's first op is waited for", "[plan][edges]") {
  constexpr StreamId kFourth{3};
  Three p;
  p.Copy(kFourth, p.Whole(p.w), p.Whole(p.a));  // 0
  p.Copy(kC, p.Whole(p.a), p.Whole(p.b));       // 1 waits for 0
  p.Copy(kFourth, p.Whole(p.w), p.Whole(p.a));  // 2 waits for 1
  REQUIRE(Derived(p.Done()) == std::vector<Edge>{{0, 0, 1}, {0, 1, 2}});
}

TEST_CASE("a fourth stream that touches nothing in common waits for nobody", "[plan][edges]") {
  constexpr StreamId kFourth{3};
  Three p;
  p.Copy(kC, p.Whole(p.w), p.Whole(p.a));
  p.Copy(kFourth, p.Whole(p.w), p.Whole(p.b));
  p.Copy(kFourth, p.Whole(p.w), p.Whole(p.b));
  REQUIRE(Derived(p.Done()).empty());
}

TEST_CASE("edges reach over entries, and schedules stand alone", "[plan][edges]") {
  Three p;
  p.Copy(kG, p.Whole(p.w), p.Whole(p.a));
  p.Copy(kC, p.Whole(p.a), p.Whole(p.b));
  StepPlan plan = p.Done();
  plan.schedule = {{0, 0, {}}, {0, 1, {}}};
  plan.prologue = {{0, 0, {}}};
  DeriveEdges(plan, kAlone, 2);
  REQUIRE(plan.schedule[0].edges == std::vector<Edge>{{0, 0, 1}});
  REQUIRE(plan.schedule[1].edges ==
          std::vector<Edge>{{0, 1, 0},
                            {1, 0, 1}});  // the second gather overwrites what the first copy reads
  REQUIRE(plan.prologue[0].edges == std::vector<Edge>{{0, 0, 1}});
  DeriveEdges(plan, kAlone, 2);  // again: the same, not twice
  REQUIRE(plan.schedule[1].edges.size() == 2);
}

// Every microbatch with bodies of its own: the same ops at the same positions, but nothing that
// repeats by its text, so that each is walked.
StepPlan WithoutRepetition(StepPlan plan) {
  for (Entry& entry : plan.schedule) {
    plan.bodies.push_back(plan.bodies[static_cast<size_t>(entry.body)]);
    entry.body = static_cast<int32_t>(plan.bodies.size()) - 1;
  }
  return plan;
}

TEST_CASE("microbatches that are not walked have the edges that a walk finds", "[plan][edges]") {
  int edges = 0;
  for (const GradSync sync : {GradSync::kEvery, GradSync::kLast})
    for (const AllocatorKind allocator : {AllocatorKind::kPacked, AllocatorKind::kDynamic})
      for (const bool overlap : {false, true})
        for (const int accumulate : {2, 3, 4, 5, 6, 7, 16}) {
          test::PlanCase c;
          c.mesh = {1, 2};
          c.options.grad_sync = sync;
          c.options.allocator = allocator;
          c.options.overlap_weight_gradients = overlap;
          c.options.accumulate = accumulate;
          const StepPlan plan = test::PlanOf(c);
          StepPlan walked = WithoutRepetition(plan);
          DeriveEdges(walked, c.mesh, accumulate);
          for (size_t e = 0; e < plan.schedule.size(); ++e) {
            INFO(ToString(c) << ": entry " << e);
            REQUIRE(plan.schedule[e].edges == walked.schedule[e].edges);
            edges += static_cast<int>(plan.schedule[e].edges.size());
          }
        }
  REQUIRE(edges > 1000);
}

}  // namespace
}  // namespace millrace
