// A capture that is timed: an event wherever an op ends, one more where an op has waited for
// another stream, around the ops of the plan in their order; and engines that go back to plain
// steps. Times of a GPU's replays: tests/system/cuda/replay_timer_test.
#include "runtime/exec/observe/replay_timer.h"

#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/local/local_world.h"
#include "comm/local/run_ranks.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/exec/agreement/plan_comms.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/recorded_step.h"
#include "tests/support/capturing_device.h"
#include "tests/support/engine_case.h"

namespace millrace::test {
namespace {

struct Op {
  std::string label, kind;
  StreamId stream;
  bool waits, first;  // of its stream in its graph
};

// What a step of the plan issues, in order.
std::vector<Op> OpsOf(const StepPlan& plan, GraphMode mode) {
  std::vector<Op> ops;
  std::set<StreamId> seen;
  for (size_t e = 0; e < plan.schedule.size(); ++e) {
    const Entry& entry = plan.schedule[e];
    if (mode == GraphMode::kMicrobatch) seen.clear();
    std::set<int32_t> waiting;
    for (const Edge& edge : entry.edges)
      if (mode == GraphMode::kStep || edge.from_entry == static_cast<int32_t>(e))
        waiting.insert(edge.to_op);
    const Body& body = plan.bodies[static_cast<size_t>(entry.body)];
    for (size_t o = 0; o < body.ops.size(); ++o) {
      const PlanOp& op = body.ops[o];
      ops.push_back({op.label, std::string(OpName(op.op)), op.stream,
                     waiting.count(static_cast<int32_t>(o)) == 1, seen.insert(op.stream).second});
    }
  }
  return ops;
}

// What rank 0 of a run has seen.
struct Timed {
  std::vector<OpSpan> spans;
  int64_t events_before = 0, events = 0,
          events_after = 0;    // of the capture: before it, with it, at the end
  int64_t plain_launches = 0;  // of the step after it
};

Timed TimeSteps(const PlanCase& c, GraphMode mode) {
  Timed timed;
  const StepPlan plan = PlanOf(c);
  LocalWorld world(c.mesh.world());
  RunRanks(world, [&](CommFactory& factory) {
    CommSet comms(factory, c.mesh, CommSharing::kSeparate, CommSpecsOf({&plan}));
    const std::unique_ptr<Device> device = MakeCapturingDevice();
    ReplayTimer timer(*device);
    EngineOptions options;
    options.graph = mode;
    Engine engine({device.get(), &CpuKernels(), &comms}, LayoutOf(c), {StatesOf(c), {plan}},
                  options);
    engine.InitWeights(1234);
    const int rank = factory.rank();
    int64_t step = 0;
    for (; step < 2; ++step) TrainStep(engine, c, rank, step);
    engine.ObserveCapture(&timer);
    TrainStep(engine, c, rank, step++);  // is issued
    const int64_t before = timer.events();
    timer.SetOrigin(engine.stream(StreamId::kCompute));
    TrainStep(engine, c, rank, step++);  // captures
    const std::vector<OpSpan> spans = timer.Spans();
    const int64_t events = timer.events(), launches = engine.recorded_step()->launches();
    engine.ObserveCapture(nullptr);
    TrainStep(engine, c, rank, step++);  // the plain graph was captured before, and is used again
    if (rank == 0)
      timed = {spans, before, events, timer.events(),
               engine.recorded_step()->launches() - launches};
  });
  return timed;
}

TEST_CASE(
    "a timed capture has an event per end of an op and per wait, and spans in the order of issue") {
  for (const GraphMode mode : {GraphMode::kStep, GraphMode::kMicrobatch}) {
    PlanCase c;
    c.mesh = {1, 2};
    c.options.comm_scratch_bytes = 1 << 21;
    c.options.accumulate = 2;
    const std::vector<Op> ops = OpsOf(PlanOf(c), mode);
    const Timed timed = TimeSteps(c, mode);
    REQUIRE(timed.spans.size() == ops.size());
    int64_t begins = 0, shared = 0, waits = 0;
    std::array<double, kStreams> last_end{};
    for (size_t i = 0; i < ops.size(); ++i) {
      const OpSpan& span = timed.spans[i];
      CAPTURE(i, ops[i].label);
      CHECK(span.label == ops[i].label);
      CHECK(span.kind == ops[i].kind);
      CHECK(span.stream == ops[i].stream);
      CHECK(span.begin_ms >= 0);
      CHECK(span.end_ms >= span.begin_ms);
      if (i > 0)
        CHECK(span.end_ms >= timed.spans[i - 1].end_ms);  // host streams: one after the other
      double& end = last_end[static_cast<size_t>(ops[i].stream)];
      if (ops[i].waits || ops[i].first) {
        ++begins;
        waits += ops[i].waits && !ops[i].first ? 1 : 0;
        CHECK(span.begin_ms >= end);
      } else {
        ++shared;
        CHECK(span.begin_ms == end);
      }
      end = span.end_ms;
    }
    CHECK(shared > 0);
    CHECK(waits > 0);
    CHECK(timed.events_before == 0);
    CHECK(timed.events == static_cast<int64_t>(ops.size()) + begins);
    CHECK(timed.events_after == timed.events);
    CHECK(timed.plain_launches > 0);
  }
}

TEST_CASE("a capture cannot be observed where steps are not replayed") {
  RunEngines({}, {}, [](Engine& engine, int) {
    ReplayTimer timer(engine.device());
    CHECK_FALSE(engine.replays());
    CHECK_THROWS_WITH(engine.ObserveCapture(&timer), Catch::Contains("not replayed"));
  });
}

}  // namespace
}  // namespace millrace::test
