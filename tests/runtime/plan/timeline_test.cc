#include "runtime/plan/cost/timeline.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "tests/runtime/plan/tiny_plan.h"

namespace millrace {
namespace {

using test::Busy;
using test::Sends;
using test::SlowMachine;
constexpr StreamId kC = StreamId::kCompute, kG = StreamId::kGather, kR = StreamId::kReduce;

// Memory never decides in these plans where a collective is involved.
Machine Wires() {
  Machine machine = SlowMachine();
  machine.vector = 1e12;
  return machine;
}
PlanOp Wire(StreamId stream, int64_t seconds, const std::string& label) {
  // 3 bytes of memory per byte sent: a machine whose link is 3 times slower than its memory.
  return Sends(stream, seconds, label);
}
Machine SlowLink() {
  Machine machine = Wires();
  machine.memory = 3;
  return machine;
}

StepPlan OneBody(std::vector<PlanOp> ops, std::vector<Edge> edges) {
  StepPlan plan;
  plan.bodies = {{"only", std::move(ops), 0}};
  plan.schedule = {{0, 0, std::move(edges)}};
  return plan;
}

std::vector<std::pair<double, double>> Spans(const Timeline& line) {
  std::vector<std::pair<double, double>> spans;
  for (const SimulatedOp& op : line.ops) spans.emplace_back(op.begin, op.end);
  return spans;
}
using SpanList = std::vector<std::pair<double, double>>;

//            0        60       100      150
//  gather    [---------- g ------][- h -]
//  compute   [-- a ---]...........[- b ][-- c ...
TEST_CASE("compute waits for the gather that an edge names, and for nothing else",
          "[plan][timeline]") {
  const StepPlan plan = OneBody({Busy(kG, 100, "g"), Busy(kC, 60, "a"), Busy(kG, 40, "h"),
                                 Busy(kC, 50, "b"), Busy(kC, 30, "c")},
                                {{0, 0, 3}});
  const Timeline line = Simulate(plan, plan.schedule, {1, 1}, SlowMachine());
  REQUIRE(Spans(line) == SpanList{{0, 100}, {0, 60}, {100, 140}, {100, 150}, {150, 180}});
  REQUIRE(line.seconds == 180);
  REQUIRE(line.busy == std::array<double, kStreams>{140, 140, 0});
  REQUIRE(line.exposed == std::array<double, kStreams>{0, 40, 0});
}

TEST_CASE(
    "waiting at the end of the step is exposed too, and charged to the stream that is waited for",
    "[plan][timeline]") {
  const StepPlan plan = OneBody({Busy(kC, 10, "a"), Busy(kG, 16, "g"), Busy(kR, 24, "r")}, {});
  const Timeline line = Simulate(plan, plan.schedule, {1, 1}, SlowMachine());
  REQUIRE(line.seconds == 24);
  REQUIRE(line.exposed == std::array<double, kStreams>{0, 0, 14});
}

//            0    10   20   30
//  gather    [--- busy --][- g ]     issued first, ready second
//  reduce    ..[- r ]                issued last, ready first
TEST_CASE("collectives share one link, first come first served", "[plan][timeline]") {
  const StepPlan plan = OneBody(
      {Busy(kG, 30, "busy"), Wire(kG, 10, "g"), Busy(kC, 6, "a"), Wire(kR, 10, "r")}, {{0, 2, 3}});
  const Timeline line = Simulate(plan, plan.schedule, {1, 2}, SlowLink());
  // "busy" and "a" run at memory rate 3.
  REQUIRE(Spans(line) == SpanList{{0, 10}, {12, 22}, {0, 2}, {2, 12}});
}

TEST_CASE("collectives of a group of one rank need no link", "[plan][timeline]") {
  const StepPlan plan = OneBody({Wire(kG, 10, "g"), Wire(kR, 10, "r")}, {});
  const Timeline line = Simulate(plan, plan.schedule, {1, 1}, SlowLink());
  REQUIRE(Spans(line) == SpanList{{0, 10}, {0, 10}});
}

TEST_CASE("a kernel occupies its stream for its time and the gap to the next", "[plan][timeline]") {
  Machine machine = SlowLink();
  machine.op_gap = 5;
  machine.collective_latency = 7;
  const StepPlan plan =
      OneBody({Busy(kC, 30, "a"), Busy(kC, 30, "b"), Wire(kG, 10, "g"), Wire(kG, 10, "h")}, {});
  const Timeline line = Simulate(plan, plan.schedule, {1, 2}, machine);
  REQUIRE(Spans(line) == SpanList{{0, 15}, {15, 30}, {0, 17}, {17, 34}});
}

TEST_CASE("where streams do not overlap, ops follow each other in the order of issue",
          "[plan][timeline]") {
  Machine machine = SlowMachine();
  machine.concurrent_streams = false;
  const StepPlan plan = OneBody({Busy(kG, 8, "g"), Busy(kC, 10, "a"), Busy(kR, 4, "r"),
                                 Busy(kG, 2, "h"), Busy(kC, 6, "b"), Busy(kR, 12, "s")},
                                {});
  const Timeline line = Simulate(plan, plan.schedule, {1, 1}, machine);
  REQUIRE(Spans(line) == SpanList{{0, 8}, {8, 18}, {18, 22}, {22, 24}, {24, 30}, {30, 42}});
  REQUIRE(line.exposed == std::array<double, kStreams>{0, 10, 16});
}

TEST_CASE("edges reach back over entries; a join at every entry waits for all streams",
          "[plan][timeline]") {
  StepPlan plan;
  plan.bodies = {{"first", {Busy(kG, 100, "g"), Busy(kC, 10, "a")}, 0},
                 {"second", {Busy(kC, 20, "b"), Busy(kC, 30, "c")}, 2}};
  plan.schedule = {{0, 0, {}}, {1, 0, {{0, 0, 1}}}, {1, 1, {}}};
  const Timeline free = Simulate(plan, plan.schedule, {1, 1}, SlowMachine());
  REQUIRE(Spans(free) == SpanList{{0, 100}, {0, 10}, {10, 30}, {100, 130}, {130, 150}, {150, 180}});
  REQUIRE(free.ops[3].entry == 1);
  REQUIRE(free.ops[3].op == 1);
  const Timeline joined =
      Simulate(plan, plan.schedule, {1, 1}, SlowMachine(), StreamJoin::kEveryEntry);
  REQUIRE(Spans(joined) ==
          SpanList{{0, 100}, {0, 10}, {100, 120}, {120, 150}, {150, 170}, {170, 200}});
  REQUIRE(joined.exposed_total() == 90);
}

TEST_CASE("ops that wait for each other are an error, not a hang", "[plan][timeline]") {
  const StepPlan plan = OneBody({Busy(kG, 2, "g"), Busy(kC, 2, "a")}, {{0, 1, 0}, {0, 0, 1}});
  REQUIRE_THROWS_WITH(Simulate(plan, plan.schedule, {1, 1}, SlowMachine()),
                      Catch::Contains("2 ops of the plan wait for each other"));
}

TEST_CASE("an empty schedule takes no time", "[plan][timeline]") {
  REQUIRE(Simulate(StepPlan{}, {}, {1, 1}, SlowMachine()).seconds == 0);
}

TEST_CASE("planned steps: streams in order, edges kept, exposed time is what compute does not run",
          "[plan][timeline]") {
  const int world = GENERATE(1, 2, 5);
  const int accumulate = GENERATE(1, 4);
  const std::string name = GENERATE("h100", "cpu");
  const StreamJoin join = GENERATE(StreamJoin::kStepEnd, StreamJoin::kEveryEntry);
  CAPTURE(world, accumulate, name, static_cast<int>(join));
  const test::TinyPlan tiny =
      test::PlanFor(test::SmallModel(3), {1, world}, {}, test::SmallBatch(accumulate));
  const StepPlan& plan = tiny.plan;
  const Timeline line = Simulate(plan, plan.schedule, tiny.layout.mesh, FindMachine(name), join);

  std::array<double, kStreams> last{};
  double latest = 0, sum = 0;
  std::vector<size_t> first;
  size_t next = 0;
  for (size_t e = 0; e < plan.schedule.size(); ++e) {
    first.push_back(next);
    for (size_t o = 0; o < plan.bodies[static_cast<size_t>(plan.schedule[e].body)].ops.size();
         ++o, ++next) {
      const SimulatedOp& op = line.ops[next];
      double& end = last[static_cast<size_t>(op.stream)];
      REQUIRE(op.begin >= end);
      REQUIRE(op.end >= op.begin);
      end = op.end;
      latest = std::max(latest, op.end);
      sum += op.end - op.begin;
    }
  }
  REQUIRE(next == line.ops.size());
  REQUIRE(line.seconds == latest);
  REQUIRE(line.seconds <= sum * (1 + 1e-12));
  for (size_t e = 0; e < plan.schedule.size(); ++e)
    for (const Edge& edge : plan.schedule[e].edges)
      REQUIRE(
          line.ops[first[static_cast<size_t>(edge.from_entry)] + static_cast<size_t>(edge.from_op)]
              .end <= line.ops[first[e] + static_cast<size_t>(edge.to_op)].begin);
  REQUIRE(line.exposed_total() == Approx(line.seconds - line.busy[0]).margin(1e-12));
  REQUIRE(line.exposed[0] == 0);
  if (name == "cpu") REQUIRE(line.seconds == Approx(sum));
}

}  // namespace
}  // namespace millrace
