// What a profiler is told of steps: nested ranges with the names that a user looks for, an op each
// while ops are issued, and where a graph is launched, the launch alone.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "comm/local/local_world.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/exec/agreement/plan_comms.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/observe/progress.h"
#include "tests/support/capturing_device.h"
#include "tests/support/engine_case.h"
#include "tests/support/range_recorder.h"

namespace millrace::test {
namespace {

void AddOps(const StepPlan& plan, const std::vector<Entry>& schedule, const std::string& within,
            std::vector<std::string>& ranges) {
  for (const Entry& entry : schedule)
    for (const PlanOp& op : plan.bodies[static_cast<size_t>(entry.body)].ops)
      ranges.push_back(fmt::format("{}|{} {}", within, OpName(op.op), op.label));
}

struct OneRank {
  PlanCase c;
  StepPlan plan = PlanOf(c);
  LocalWorld world{1};
  std::unique_ptr<CommFactory> factory = world.Factory(0);
  CommSet comms{*factory, Mesh{1, 1}, CommSharing::kSeparate, CommSpecsOf({&plan})};
  RangeRecorder recorder;

  std::unique_ptr<Engine> MakeEngine(Device& device, GraphMode mode) {
    EngineOptions options;
    options.graph = mode;
    auto engine = std::make_unique<Engine>(
        ExecutorContext{&device, &CpuKernels(), &comms, nullptr, &recorder}, LayoutOf(c),
        RunPlans{StatesOf(c), {plan}}, options);
    engine->InitWeights(1234);
    return engine;
  }
  std::vector<std::string> RangesOfStep(Engine& engine, int64_t step) {
    recorder.seen.clear();
    TrainStep(engine, c, 0, step);
    REQUIRE(recorder.closed());
    return recorder.seen;
  }
};

TEST_CASE("a step that is issued is a range, with a range for each op in the order of issue") {
  for (const GraphMode mode : {GraphMode::kOff, GraphMode::kStep}) {
    OneRank rank;
    const std::unique_ptr<Device> device = MakeHostDevice();
    const std::unique_ptr<Engine> engine = rank.MakeEngine(*device, mode);
    std::vector<std::string> expected = {"step 12"};
    AddOps(rank.plan, rank.plan.prologue, "step 12", expected);
    AddOps(rank.plan, rank.plan.schedule, "step 12", expected);
    CHECK(rank.RangesOfStep(*engine, 11) == expected);
    const std::string first_op = expected.back();
    expected = {"step 13"};
    AddOps(rank.plan, rank.plan.schedule, "step 13", expected);
    const int registered = rank.recorder.registered;
    CHECK(rank.RangesOfStep(*engine, 12) == expected);
    CHECK(rank.recorder.registered == registered);  // names are put together once
    CHECK_THAT(rank.recorder.seen, Catch::VectorContains(std::string("step 13|matmul h.1/mlp.up")));
  }
}

TEST_CASE(
    "a step that is captured has the ranges of its ops within the capture's; one that is launched "
    "the launch") {
  OneRank rank;
  const std::unique_ptr<Device> device = MakeCapturingDevice();
  const std::unique_ptr<Engine> engine = rank.MakeEngine(*device, GraphMode::kStep);
  rank.RangesOfStep(*engine, 0);
  std::vector<std::string> expected = {"step 2", "step 2|capture of a graph"};
  AddOps(rank.plan, rank.plan.schedule, "step 2|capture of a graph", expected);
  expected.push_back("step 2|launch of a graph");
  CHECK(rank.RangesOfStep(*engine, 1) == expected);
  CHECK(rank.RangesOfStep(*engine, 2) ==
        std::vector<std::string>{"step 3", "step 3|launch of a graph"});
}

TEST_CASE("a phase is a range of its name; its text is put together where somebody listens") {
  RangeRecorder recorder;
  {
    const PhaseScope evaluating(nullptr, RunPhase::kEvaluating, 0, &recorder);
    const PhaseScope saving(nullptr, RunPhase::kSaving, 7, &recorder);
  }
  CHECK(recorder.closed());
  CHECK(recorder.seen == std::vector<std::string>{"evaluating", "evaluating|saving a checkpoint"});
  bool asked = false;
  const auto text = [&] {
    asked = true;
    return "text";
  };
  { const RangeScope none(nullptr, text); }
  CHECK_FALSE(asked);
  { const RangeScope one(&recorder, text); }
  CHECK(asked);
}

}  // namespace
}  // namespace millrace::test
