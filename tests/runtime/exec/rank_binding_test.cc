// What depends on the rank, in the three places that read it: the proof (AccessTable), the executor
// (BindOp) and the plan's text.
#include <array>
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "runtime/exec/bound_op.h"
#include "runtime/plan/check/access_table.h"
#include "tests/runtime/plan/hand_plan.h"

namespace millrace {
namespace {

using test::HandPlan;

struct OneCopy : HandPlan {
  BufferId weights = Master("weights"), all = Buffer("all", 1, {{0, 1}});

  StepPlan Reads(AxisSet axes) {
    View slice = Part(all, 2, 4);
    slice.rank_stride = 4;
    slice.rank_axes = axes;
    Copy(StreamId::kCompute, slice, Part(weights, 0, 4));
    return Done();
  }
};

// First byte of the view in the arena: as proved, and as bound.
std::array<int64_t, 2> Begins(const StepPlan& plan, const Mesh& mesh, int rank) {
  Violations problems;
  const AccessTable table(plan, mesh, 1, {rank}, &problems);
  REQUIRE(problems.empty());
  const KernelOp& op = plan.bodies[0].ops[0].op;
  std::byte arena[1024];
  const BoundOp bound = BindOp({&plan, arena, mesh, rank}, op, 0, 0);
  return {table.bytes(*table.of(0, 0).front().cells.begin()).begin,
          std::get<CastOp<TensorView>>(bound).x.data - arena};
}

TEST_CASE("a slice by rank is bound where it was proved, over any axes", "[exec]") {
  const Mesh mesh(2, 2);
  struct Case {
    AxisSet axes;
    std::array<int, 4> place;  // of rank 0, 1, 2, 3
  };
  for (const Case& c : {Case{Axis::kShard, {0, 1, 0, 1}}, Case{Axis::kReplicate, {0, 0, 1, 1}},
                        Case{AxisSet::All(), {0, 1, 2, 3}}, Case{{}, {0, 0, 0, 0}}}) {
    const StepPlan plan = OneCopy().Reads(c.axes);
    for (int rank = 0; rank < 4; ++rank) {
      CAPTURE(ToString(c.axes), rank);
      const int64_t begin = 256 + (2 + 4 * c.place[static_cast<size_t>(rank)]) * 4;
      const auto [proved, bound] = Begins(plan, mesh, rank);
      CHECK(proved == begin);
      CHECK(bound == begin);
    }
  }
}

TEST_CASE("the axes of a slice are in the plan's text", "[exec]") {
  std::set<std::string> hashes;
  for (const AxisSet axes : {AxisSet(Axis::kShard), AxisSet(Axis::kReplicate), AxisSet::All()}) {
    const StepPlan plan = OneCopy().Reads(axes);
    hashes.insert(PlanHash(plan));
    CHECK_THAT(ToString(plan), Catch::Contains("all+2+" + ToString(axes) + "_rank*4:"));
  }
  CHECK(hashes.size() == 3);
}

TEST_CASE("an attribute that depends on the rank is bound for it", "[exec]") {
  HandPlan p;
  const BufferId weights = p.Master("weights");
  AdamWOp<View> adamw;
  adamw.master = adamw.m = adamw.v = adamw.grad = adamw.scalars = p.Part(weights, 0, 8);
  adamw.decay = std::make_shared<const std::vector<Range>>();
  adamw.flat_begin = RankInt(100, 8, {Axis::kReplicate, Axis::kTensor});
  p.Op(StreamId::kCompute, adamw, "adamw");
  const StepPlan plan = p.Done();
  std::byte arena[256];
  const Mesh mesh = Mesh(2, 2).With(Axis::kTensor, 3);
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const BoundOp bound = BindOp({&plan, arena, mesh, rank}, plan.bodies[0].ops[0].op, 0, 0);
    CHECK(std::get<AdamWOp<TensorView>>(bound).flat_begin.value() ==
          100 + 8 * (rank / 6 * 3 + rank % 3));
  }
  CHECK_THAT(ToString(plan), Catch::Contains("flat_begin=100+replicate+tensor_rank*8"));
}

}  // namespace
}  // namespace millrace
