// What the planner's passes get from the builder that they share.
#include "runtime/plan/schedule/step_builder.h"

#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "tests/support/plan_case.h"

namespace millrace {
namespace {

test::PlanCase FourRanks() {
  test::PlanCase c;
  c.mesh = {2, 2};
  c.options.shape = {.batch = 2, .seq = c.model.seq_len};
  c.options.comm_scratch_bytes = 1 << 20;
  return c;
}

// The buffer that a collective over `axes` on `stream` stages in.
template <class Op>
BufferId ScratchOf(StepBuilder& builder, AxisSet axes, StreamId stream) {
  Op op;
  op.axes = axes;
  builder.Emit(op, stream, "collective", {});
  return std::get<Op>(builder.plan.bodies.back().ops.back().op).scratch.buffer;
}

TEST_CASE("collectives of two streams stage in different bytes", "[plan]") {
  const test::PlanCase c = FourRanks();
  const ShardLayout layout = test::LayoutOf(c);
  const Program program = test::ProgramOf(c);
  const StateLayout states = PlanStates(layout, c.options, {&program});
  StepBuilder builder(layout, states, program, c.options, "train");
  builder.BeginBody("forward", Phase::kForward);
  const BufferId gather = ScratchOf<AllGatherOp<View>>(builder, Axis::kShard, StreamId::kGather);
  const BufferId reduce =
      ScratchOf<ReduceScatterOp<View>>(builder, Axis::kShard, StreamId::kReduce);
  CHECK(gather);
  CHECK(reduce);
  CHECK(gather != reduce);
  // Also of one kind; those of one stream run one after the other, and need no more.
  CHECK(ScratchOf<AllGatherOp<View>>(builder, Axis::kShard, StreamId::kReduce) == reduce);
  CHECK(ScratchOf<AllReduceOp<View>>(builder, Axis::kReplicate, StreamId::kReduce) == reduce);
  CHECK(ScratchOf<ReduceScatterOp<View>>(builder, Axis::kReplicate, StreamId::kGather) == gather);
  CHECK_THROWS_WITH(ScratchOf<AllGatherOp<View>>(builder, Axis::kShard, StreamId::kCompute),
                    Catch::Contains("no scratch is planned for collectives on the compute stream"));
}

}  // namespace
}  // namespace millrace
