#include "runtime/plan/cost/timeline.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "tests/runtime/plan/tiny_plan.h"

namespace millrace {
namespace {

using test::Busy;
using test::Dense;
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

//            0    2         12     22
//  gather    [--- busy --][- g ----]     alone until 10, then beside r until it has ended
//  reduce    ..[-- r ----------]
TEST_CASE("collectives at once share their link: two alike take twice as long",
          "[plan][timeline]") {
  const StepPlan plan = OneBody(
      {Busy(kG, 30, "busy"), Wire(kG, 10, "g"), Busy(kC, 6, "a"), Wire(kR, 10, "r")}, {{0, 2, 3}});
  const Timeline line = Simulate(plan, plan.schedule, {1, 2}, SlowLink());
  // "busy" and "a" run at memory rate 3; r has 2 of 10 left when g begins: 4 at half speed.
  REQUIRE(Spans(line) == SpanList{{0, 10}, {10, 22}, {0, 2}, {2, 14}});
  const StepPlan both = OneBody({Wire(kG, 10, "g"), Wire(kR, 10, "r")}, {});
  REQUIRE(Spans(Simulate(both, both.schedule, {1, 2}, SlowLink())) == SpanList{{0, 20}, {0, 20}});
  const StepPlan uneven = OneBody({Wire(kG, 10, "g"), Wire(kR, 4, "r")}, {});
  REQUIRE(Spans(Simulate(uneven, uneven.schedule, {1, 2}, SlowLink())) ==
          SpanList{{0, 14}, {0, 8}});
}

// The gather stays on a host, the sum over replicas goes between hosts: two of two ranks each.
TEST_CASE("a link within a host and one between hosts do not share", "[plan][timeline]") {
  Machine machine = SlowLink();
  machine.memory = 1e12;
  machine.ranks_per_host = 2;
  machine.host_link = 0.5;
  AllReduceOp<View> sum;
  sum.buffer = Dense(0, DType::kU8, {10});
  const PlanOp replicas{sum, kR, "r", {}};
  const StepPlan apart = OneBody({Wire(kG, 10, "g"), replicas}, {});
  // 2 * 5 bytes over the slow card; the link within the host is half idle meanwhile, which the
  // gather would need whole: 1.5 asked of 1.
  const Timeline line = Simulate(apart, apart.schedule, {2, 2}, machine);
  REQUIRE(line.ops[0].end == Approx(15));
  REQUIRE(line.ops[1].end == Approx(25));
  machine.host_link = 1e-3;  // a network so slow that what it leaves of the link does not matter
  const Timeline slow = Simulate(apart, apart.schedule, {2, 2}, machine);
  REQUIRE(slow.ops[0].end == Approx(10).epsilon(0.002));
  REQUIRE(slow.ops[1].end == Approx(10000).epsilon(0.002));
}

TEST_CASE("kernels of two streams share a device where the machine says so", "[plan][timeline]") {
  Machine machine = SlowMachine();
  machine.op_gap = 5;
  const StepPlan plan = OneBody({Busy(kG, 100, "g"), Busy(kC, 60, "a"), Busy(kC, 20, "b")}, {});
  REQUIRE(Spans(Simulate(plan, plan.schedule, {1, 1}, machine)) ==
          SpanList{{0, 105}, {0, 65}, {65, 90}});
  machine.kernels_share = true;
  // Half speed each from 5 on: a is over at 125; b's gap is g's alone; b takes 20 more until g's
  // other 35 - 10 are over.
  const Timeline line = Simulate(plan, plan.schedule, {1, 1}, machine);
  REQUIRE(Spans(line) == SpanList{{0, 185}, {0, 125}, {125, 170}});
  REQUIRE(line.seconds == 100 + 60 + 20 + 5);  // all the work, and the gap that nothing fills
}

TEST_CASE("the power cap: a step takes what its work does at the capped rates, or more",
          "[plan][timeline]") {
  Machine machine = SlowMachine();
  MatmulOp<View> product;
  product.a = Dense(0, DType::kF32, {10, 10});
  product.b = Dense(0, DType::kF32, {10, 10});
  product.out = Dense(0, DType::kF32, {10, 10});  // 2,000 FLOPs, 1,200 bytes
  const StepPlan plan =
      OneBody({{product, kC, "p", {}}, Busy(kC, 600, "a"), {product, kC, "q", {}}}, {});
  REQUIRE(Simulate(plan, plan.schedule, {1, 1}, machine).seconds == 4600);
  machine.capped_gemm = 1;  // as fast as the products are: the cap changes nothing
  REQUIRE(Simulate(plan, plan.schedule, {1, 1}, machine).seconds == 4600);
  machine.capped_memory = 0.6;  // now what moves bytes costs power, too: 4000 + 600 / 0.6
  const Timeline capped = Simulate(plan, plan.schedule, {1, 1}, machine);
  REQUIRE(capped.seconds == Approx(5000));
  REQUIRE(capped.ops[1].end - capped.ops[1].begin == Approx(600));  // memory keeps its clock
  REQUIRE(capped.ops[0].end == Approx(2200));
}

//            0     1      3              15
//  gather    [lat.][------------- g -------]   at 0.5 beside p, then at 0.75
//  compute   [----- p -----]
TEST_CASE("over peers' memory, a gather that began beside a product stays slow behind it",
          "[plan][timeline]") {
  Machine machine = SlowLink();
  machine.maps_peers = true;
  machine.peer_latency = 1;
  machine.collective_beside = 0.5;
  machine.collective_begun = 0.75;
  MatmulOp<View> product;  // 2 FLOPs in 3 seconds; memory would take 1
  product.a = product.b = product.out = Dense(0, DType::kU8, {1, 1});
  machine.gemm_f32 = 2.0 / 3;
  const PlanOp p{product, kC, "p", {}};
  const StepPlan beside = OneBody({p, Wire(kG, 10, "g")}, {});
  const Timeline line = Simulate(beside, beside.schedule, {1, 2}, machine);
  REQUIRE(line.ops[0].end == Approx(3));
  REQUIRE(line.ops[1].end == Approx(3 + (10 - 2 * 0.5) / 0.75));
  // Beside what is bound by memory there is room.
  const StepPlan room = OneBody({Busy(kC, 8, "a"), Wire(kG, 10, "g")}, {});
  REQUIRE(Simulate(room, room.schedule, {1, 2}, machine).ops[1].end ==
          Approx(8 / 3.0 + 10 - (8 / 3.0 - 1) * 0.5));
  // And over a communicator's own buffers nobody has seen it.
  machine.maps_peers = false;
  machine.collective_latency = 1;
  REQUIRE(Simulate(beside, beside.schedule, {1, 2}, machine).ops[1].end ==
          Approx(3 + 10 - 2 * 0.5));
}

TEST_CASE("collectives that kernels slow ask for less of a link", "[plan][timeline]") {
  Machine machine = SlowLink();
  machine.collective_beside = 0.4;
  // 0.8 of the link between the two, while a runs: both end at 10 / 0.4.
  const StepPlan plan = OneBody({Wire(kG, 10, "g"), Wire(kR, 10, "r"), Busy(kC, 90, "a")}, {});
  const Timeline line = Simulate(plan, plan.schedule, {1, 2}, machine);
  REQUIRE(line.ops[0].end == Approx(25));
  REQUIRE(line.ops[1].end == Approx(25));
}

TEST_CASE("latency is not shared, and what moves bytes slows compute", "[plan][timeline]") {
  Machine machine = SlowLink();
  machine.collective_latency = 5;
  machine.collective_share = 0.2;
  const StepPlan plan =
      OneBody({Wire(kG, 10, "g"), Wire(kR, 10, "r"), Busy(kC, 30, "a"), Busy(kC, 60, "b")}, {});
  const Timeline line = Simulate(plan, plan.schedule, {1, 2}, machine);
  // Both wait 5, then share 20; a needs 10: 5 at full speed, 5 / 0.8; b 20: 13.75 * 0.8 till 25.
  REQUIRE(line.ops[0].end == Approx(25));
  REQUIRE(line.ops[1].end == Approx(25));
  REQUIRE(line.ops[2].end == Approx(5 + 5 / 0.8));
  REQUIRE(line.ops[3].end == Approx(25 + 20 - 13.75 * 0.8));
  machine.collective_beside = 0.5;
  const StepPlan one = OneBody({Wire(kG, 10, "g"), Busy(kC, 30, "a")}, {});
  // a: 5 before the gather moves, 5 beside it; meanwhile it moves 3.125 of 10, then the rest alone.
  const Timeline beside = Simulate(one, one.schedule, {1, 2}, machine);
  REQUIRE(beside.ops[1].end == Approx(5 + 5 / 0.8));
  REQUIRE(beside.ops[0].end == Approx(5 + 6.25 + 10 - 3.125));
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
