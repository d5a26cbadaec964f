// Floors of programs by hand, on a machine where a byte of memory takes a second. That no plan of a
// model is below its floor is in tests/runtime/run/advise_test.cc.
#include "runtime/plan/cost/program_floor.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/cost/cost_model.h"
#include "tests/runtime/plan/tiny_plan.h"

namespace millrace {
namespace {

using test::Dense;
using test::SlowMachine;

const Mesh kPair = Mesh().With(Axis::kContext, 2);

struct Hand {
  Program program;
  Machine machine = SlowMachine();
  FloorInput input{program, kPair, machine};

  // `bytes` of u8, or f32s.
  View Buffer(int64_t numel, ProgramRole role = ProgramRole::kActivation,
              DType dtype = DType::kU8) {
    ProgramBuffer buffer;
    buffer.role = role;
    buffer.layout = DenseLayout(dtype, {numel});
    program.buffers.push_back(std::move(buffer));
    return Dense(static_cast<int32_t>(program.buffers.size()) - 1, dtype, {numel});
  }
  // Takes as many seconds as it reads and writes bytes.
  void Copy(const View& x, const View& out) { program.forward.push_back({Cast(x, out), "", {}}); }
  void CopyBack(const View& x, const View& out) {
    program.backward.push_back({Cast(x, out), "", {}});
  }
  // Of x's bytes from both ranks along `axes`; its time.
  double Gather(const View& x, const View& out, AxisSet axes = Axis::kContext) {
    AllGatherOp<View> op;
    op.axes = axes;
    op.shard = x;
    op.full = out;
    program.forward.push_back({op, "", {}});
    return CostModel(kPair, machine).Of(op).seconds;
  }
  static KernelOp Cast(const View& x, const View& out) {
    CastOp<View> op;
    op.x = x;
    op.out = out;
    return op;
  }
  ProgramFloor Floor() const { return FloorOf(input); }
};

View Part(View view, int64_t begin, int64_t numel) {
  view.offset = begin;
  view.layout = DenseLayout(view.layout.dtype, {numel});
  return view;
}

TEST_CASE("the compute stream runs one op after the other, with gaps", "[plan][cost]") {
  Hand hand;
  const View a = hand.Buffer(10), b = hand.Buffer(10), c = hand.Buffer(10);
  hand.Copy(a, b);
  hand.Copy(a, c);
  hand.CopyBack(b, c);
  CHECK(hand.Floor().seconds == Approx(60));
  hand.machine.op_gap = 0.5;
  CHECK(hand.Floor().seconds == Approx(61.5));
  hand.input.accumulate = 3;
  CHECK(hand.Floor().seconds == Approx(3 * 61.5));
}

TEST_CASE("an exchange runs beside ops that do not read what it brings", "[plan][cost]") {
  Hand hand;
  const View a = hand.Buffer(10), b = hand.Buffer(10), c = hand.Buffer(20), d = hand.Buffer(100),
             e = hand.Buffer(100), f = hand.Buffer(20);
  hand.Copy(a, b);
  const double gather = hand.Gather(b, c);
  REQUIRE(gather > 20);
  REQUIRE(gather < 200);
  SECTION("hidden by a longer one") {
    hand.Copy(d, e);
    hand.Copy(c, f);
    CHECK(hand.Floor().seconds == Approx(20 + 200 + 40));
  }
  SECTION("waited for") {
    hand.Copy(c, f);
    hand.Copy(d, e);
    CHECK(hand.Floor().seconds == Approx(20 + gather + 40 + 200));
  }
  SECTION("still under way when the last op has ended") {
    CHECK(hand.Floor().seconds == Approx(20 + gather));
  }
  SECTION("exchanges follow each other") {
    hand.Gather(a, f);
    CHECK(hand.Floor().seconds == Approx(20 + 2 * gather));
  }
  SECTION("the next microbatch's ops do not wait for it") {
    hand.Copy(d, e);
    hand.input.accumulate = 2;
    CHECK(hand.Floor().seconds == Approx(2 * (20 + 200)));
  }
  SECTION("ops between exchanges are issued with them") {
    hand.Copy(d, e);
    hand.program.forward.back().strip = 0;
    CHECK(hand.Floor().seconds == Approx(20 + gather + 200));
  }
}

TEST_CASE("an op waits for who writes the bytes that it reads, not for others", "[plan][cost]") {
  Hand hand;
  const View a = hand.Buffer(10), both = hand.Buffer(40), out = hand.Buffer(20);
  hand.Copy(a, Part(both, 20, 10));
  const double gather = hand.Gather(a, Part(both, 0, 20));
  const int64_t begin = GENERATE(0, 19, 20);
  hand.Copy(Part(both, begin, 20), out);
  // The gather runs beside the first copy: nothing of it is read from there.
  REQUIRE(gather > 20);
  CHECK(hand.Floor().seconds == Approx(begin < 20 ? gather + 40 : std::max(gather, 60.0)));
}

TEST_CASE("of microbatches behind the fourth the compute stream's time counts", "[plan][cost]") {
  Hand hand;
  const View a = hand.Buffer(10), b = hand.Buffer(20), c = hand.Buffer(20);
  const double gather = hand.Gather(a, b);
  hand.Copy(b, c);
  // Each gather runs beside the copy of the microbatch before.
  REQUIRE(gather < 40);
  for (const int accumulate : {1, 2, 4, 5, 9}) {
    hand.input.accumulate = accumulate;
    CHECK(hand.Floor().seconds == Approx(gather + accumulate * 40));
  }
  const View longer = hand.Buffer(60), far = hand.Buffer(120);
  const double behind = hand.Gather(longer, far);  // of four microbatches, all that is seen
  REQUIRE(gather + behind > 40);
  for (const int accumulate : {4, 9}) {
    hand.input.accumulate = accumulate;
    CHECK(hand.Floor().seconds == Approx(4 * (gather + behind) + (accumulate - 4) * 40));
  }
}

TEST_CASE("what is exchanged along the axes of parameters takes no time", "[plan][cost]") {
  for (const Axis axis : {Axis::kShard, Axis::kReplicate}) {
    Hand hand;
    hand.input.mesh = Mesh(2, 2).With(Axis::kContext, 2);
    const View a = hand.Buffer(10), b = hand.Buffer(20), c = hand.Buffer(20);
    hand.Gather(a, b, {axis, Axis::kContext});
    hand.Copy(b, c);
    CHECK(hand.Floor().seconds == Approx(40));
  }
}

TEST_CASE("a weight's gradient is as narrow as it may be, and beside others if it may",
          "[plan][cost]") {
  Hand hand;
  const View x = hand.Buffer(10, ProgramRole::kActivation, DType::kF32),
             gradient = hand.Buffer(10, ProgramRole::kParamGrad, DType::kF32), a = hand.Buffer(50),
             b = hand.Buffer(50);
  hand.CopyBack(x, gradient);
  hand.CopyBack(a, b);
  CHECK(hand.Floor().seconds == Approx(40 + 40 + 100));
  hand.input.gradients = DType::kBF16;
  CHECK(hand.Floor().seconds == Approx(40 + 20 + 100));
  hand.input.weight_gradients_apart = true;
  CHECK(hand.Floor().seconds == Approx(100));
  hand.input.accumulate = 6;
  CHECK(hand.Floor().seconds == Approx(600));
  // It begins when what it reads is there, be the compute stream busy, and the step waits for it.
  hand.input.accumulate = 1;
  hand.CopyBack(x, gradient);
  CHECK(hand.Floor().seconds == Approx(100));
  hand.CopyBack(b, x);
  hand.CopyBack(x, gradient);
  CHECK(hand.Floor().seconds == Approx(100 + 90 + 60));
}

TEST_CASE("a step takes the time that the power cap asks for, but for a thousandth",
          "[plan][cost]") {
  Hand hand;
  const View a = hand.Buffer(10), b = hand.Buffer(10);
  hand.Copy(a, b);
  hand.machine.capped_memory = 0.25;
  hand.input.accumulate = 6;
  CHECK(hand.Floor().seconds == Approx(0.999 * 6 * 20 * 4).epsilon(1e-9));
  hand.machine.capped_memory = 4;
  CHECK(hand.Floor().seconds == Approx(120));
}

TEST_CASE("activations are live from the first op that names them to the last one",
          "[plan][cost]") {
  Hand hand;
  const View a = hand.Buffer(100), b = hand.Buffer(30), c = hand.Buffer(7), d = hand.Buffer(500),
             weight = hand.Buffer(1000, ProgramRole::kParam);
  hand.Buffer(5000);  // no op names it
  hand.Copy(a, b);
  CHECK(hand.Floor().activation_bytes == 130);
  hand.Copy(weight, c);
  CHECK(hand.Floor().activation_bytes == 130);
  hand.CopyBack(b, c);
  CHECK(hand.Floor().activation_bytes == 130);  // a has ended: b and c
  hand.CopyBack(c, d);
  CHECK(hand.Floor().activation_bytes == 507);
  hand.CopyBack(a, c);  // a is kept all along
  CHECK(hand.Floor().activation_bytes == 607);
  const View f32 = hand.Buffer(200, ProgramRole::kActivation, DType::kF32);
  hand.CopyBack(f32, f32);
  CHECK(hand.Floor().activation_bytes == 800);
}

}  // namespace
}  // namespace millrace
