// A recorded list keeps the addresses that it was bound to, and says so when they
// are no longer the plan's.
#include "runtime/exec/recorded_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/base/error.h"
#include "runtime/exec/executor.h"
#include "tests/support/capturing_device.h"
#include "tests/support/engine_case.h"

namespace millrace {
namespace {

TEST_CASE("an operand that moved is named with both addresses; one that did not is not") {
  alignas(256) static std::byte arena[2][4096];
  const auto cast = [](std::byte* base) {
    CastOp<TensorView> op;
    op.x = {base + 256, DenseLayout(DType::kF32, {17})};
    op.out = {base + 1024, DenseLayout(DType::kBF16, {17})};
    return BoundOp(op);
  };
  CHECK(MovedOperand(cast(arena[0]), cast(arena[0])).empty());
  const std::string moved = MovedOperand(cast(arena[0]), cast(arena[1]));
  CHECK_THAT(moved, Catch::Contains("operand x"));
  CHECK_THAT(moved, Catch::Contains(fmt::format("{}", static_cast<const void*>(arena[0] + 256))));
  CHECK_THAT(moved, Catch::Contains(fmt::format("{}", static_cast<const void*>(arena[1] + 256))));
  CastOp<TensorView> half = std::get<CastOp<TensorView>>(cast(arena[0]));
  half.out.data += 256;
  CHECK_THAT(MovedOperand(cast(arena[0]), BoundOp(half)), Catch::Contains("operand out"));
}

TEST_CASE("a recorded step is refused at another arena, and at one where a single buffer moved") {
  const StepPlan plan = test::PlanOf({});
  const std::unique_ptr<Device> device = MakeHostDevice();
  const std::unique_ptr<DeviceBuffer> arena = device->Allocate(plan.arena_bytes, "arena"),
                                      other = device->Allocate(plan.arena_bytes, "another arena");
  Executor executor({device.get(), &CpuKernels(), nullptr});
  for (const GraphMode mode : {GraphMode::kStep, GraphMode::kMicrobatch}) {
    const RecordedStep recorded(executor, {&plan, arena->data(), {}, 0}, plan.schedule, mode);
    CHECK_NOTHROW(recorded.CheckAddresses({&plan, arena->data(), {}, 0}));
    CHECK_THROWS_WITH(recorded.CheckAddresses({&plan, other->data(), {}, 0}),
                      Catch::Contains("was captured at"));
    StepPlan moved = plan;
    const auto activation = std::find_if(
        moved.buffers.begin(), moved.buffers.end(),
        [](const PlanBuffer& b) { return b.cls == BufferClass::kActivations && !b.live.empty(); });
    REQUIRE(activation != moved.buffers.end());
    for (int64_t& offset : activation->offsets) offset += 256;
    CHECK_THROWS_WITH(recorded.CheckAddresses({&moved, arena->data(), {}, 0}),
                      Catch::Contains("was captured at"));
  }
}

TEST_CASE("the offsets of a recorded step are those of every rank, and of no other plan") {
  test::PlanCase c;
  c.mesh = {2, 2};
  c.options.comm_scratch_bytes = 1 << 21;
  const StepPlan plan = test::PlanOf(c);
  const std::unique_ptr<Device> device = MakeHostDevice();
  const std::unique_ptr<DeviceBuffer> arena = device->Allocate(plan.arena_bytes, "arena"),
                                      other = device->Allocate(plan.arena_bytes, "another arena");
  Executor executor({device.get(), &CpuKernels(), nullptr});
  const auto hash = [&](const Binding& binding) {
    return RecordedStep(executor, binding, binding.plan->schedule, GraphMode::kStep).OffsetsHash();
  };
  const std::string reference = hash({&plan, arena->data(), c.mesh, 0});
  CHECK(hash({&plan, other->data(), c.mesh, 0}) == reference);
  for (int rank = 1; rank < 4; ++rank)
    CHECK(hash({&plan, arena->data(), c.mesh, rank}) == reference);
  StepPlan moved = plan;
  moved.buffers.back().offsets.back() += 256;
  CHECK(hash({&moved, arena->data(), c.mesh, 0}) != reference);
}

// The message of the first error of three steps, with the arena moved before step `moved_at`.
std::string ErrorOf(const EngineOptions& options, int64_t moved_at) {
  bool moved = false;
  std::string said;
  test::RunEngines(
      {}, options,
      [&](Engine& engine, int rank) {
        try {
          for (int64_t step = 0; step < 3; ++step) {
            moved |= step == moved_at;
            test::TrainStep(engine, {}, rank, step);
          }
        } catch (const Error& error) {
          said = error.what();
        }
      },
      [&](int) { return test::MakeCapturingDevice({.arena_moved = &moved}); });
  return said;
}

TEST_CASE("an engine refuses to launch what was recorded at an arena that has moved since") {
  for (const GraphMode mode : {GraphMode::kStep, GraphMode::kMicrobatch}) {
    EngineOptions options;
    options.graph = mode;
    CHECK(ErrorOf(options, 3).empty());
    for (const int64_t step : {1, 2})  // of the capture; of a launch
      CHECK_THAT(ErrorOf(options, step),
                 Catch::Contains("was bound to an arena at") && Catch::Contains("which is now at"));
  }
}

TEST_CASE("all that steps use is allocated before the first one") {
  bool stepping = false;
  std::string allocated;
  test::RunEngines(
      {}, {},
      [&](Engine& engine, int rank) {
        stepping = true;
        for (int64_t step = 0; step < 3; ++step) test::TrainStep(engine, {}, rank, step);
        for (int64_t step = 3; step < 3 + Engine::kStepsInFlight; ++step)
          engine.Enqueue(test::TokensOf({}, rank, step), step, 14);
        while (engine.steps_in_flight() > 0) engine.Collect();
        stepping = false;
      },
      [&](int) {
        return test::MakeCapturingDevice({.at_allocation = [&](const std::string& label) {
          if (stepping) allocated += label + "; ";
        }});
      });
  CHECK(allocated == "");
}

}  // namespace
}  // namespace millrace
