// A capture that is timed: an event wherever an op ends, one more where an op has waited for another stream,
// around the ops of the plan in their order; and engines that go back to plain steps. Times of a GPU's
// replays: tests/system/replay_timer_test.
#include "runtime/exec/replay_timer.h"

#include <catch2/catch.hpp>
#include <memory>
#include <set>

#include "comm/local/local_world.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/exec/engine.h"
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
      if (mode == GraphMode::kStep || edge.from_entry == static_cast<int32_t>(e)) waiting.insert(edge.to_op);
    const Body& body = plan.bodies[static_cast<size_t>(entry.body)];
    for (size_t o = 0; o < body.ops.size(); ++o) {
      const PlanOp& op = body.ops[o];
      ops.push_back({op.label, std::string(OpName(op.op)), op.stream,
                     waiting.count(static_cast<int32_t>(o)) == 1, seen.insert(op.stream).second});
    }
  }
  return ops;
}

TEST_CASE("a timed capture has an event per end of an op and per wait, and spans in the order of issue") {
  for (const GraphMode mode : {GraphMode::kStep, GraphMode::kMicrobatch}) {
    PlanCase c;
    c.options.accumulate = 2;
    const StepPlan plan = PlanOf(c);
    LocalWorld world(1);
    const std::unique_ptr<CommFactory> factory = world.Factory(0);
    CommSet comms(*factory, Mesh{1, 1}, CommSharing::kSeparate);
    const std::unique_ptr<Device> device = MakeCapturingDevice();
    ReplayTimer timer(*device);
    EngineOptions options;
    options.graph = mode;
    Engine engine({device.get(), &CpuKernels(), &comms}, LayoutOf(c), {plan, {}, {}}, options);
    REQUIRE(engine.replays());
    engine.InitWeights(1234);
    TrainStep(engine, c, 0, 0);
    TrainStep(engine, c, 0, 1);
    CHECK(timer.events() == 0);
    engine.ObserveCapture(&timer);
    TrainStep(engine, c, 0, 2);
    CHECK(timer.events() == 0);  // is issued
    timer.SetOrigin(engine.stream(StreamId::kCompute));
    TrainStep(engine, c, 0, 3);  // captures

    const std::vector<Op> ops = OpsOf(plan, mode);
    const std::vector<OpSpan> spans = timer.Spans();
    REQUIRE(spans.size() == ops.size());
    int64_t begins = 0, shared = 0;
    std::array<double, kStreams> last_end{};
    for (size_t i = 0; i < ops.size(); ++i) {
      CAPTURE(i, ops[i].label);
      CHECK(spans[i].label == ops[i].label);
      CHECK(spans[i].kind == ops[i].kind);
      CHECK(spans[i].stream == ops[i].stream);
      CHECK(spans[i].begin_ms >= 0);
      CHECK(spans[i].end_ms >= spans[i].begin_ms);
      if (i > 0) CHECK(spans[i].end_ms >= spans[i - 1].end_ms);  // host streams: one after the other
      double& end = last_end[static_cast<size_t>(ops[i].stream)];
      if (ops[i].waits || ops[i].first) {
        ++begins;
        CHECK(spans[i].begin_ms >= end);
      } else {
        ++shared;
        CHECK(spans[i].begin_ms == end);
      }
      end = spans[i].end_ms;
    }
    CHECK(begins > 0);
    CHECK(shared > 0);
    CHECK(timer.events() == static_cast<int64_t>(ops.size()) + begins);

    // The plain graph was captured before and is used again.
    const int64_t launches = engine.recorded_step()->launches();
    engine.ObserveCapture(nullptr);
    TrainStep(engine, c, 0, 4);
    CHECK(engine.recorded_step()->launches() > launches);
    CHECK(timer.events() == static_cast<int64_t>(ops.size()) + begins);
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
