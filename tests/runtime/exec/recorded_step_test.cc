// A recorded list keeps the addresses that it was bound to, and says so when they
// are no longer the plan's.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/exec/executor.h"
#include "tests/support/plan_case.h"

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
    const RecordedStep recorded(executor, {&plan, arena->data(), 0, 0}, plan.schedule, mode);
    CHECK_NOTHROW(recorded.CheckAddresses({&plan, arena->data(), 0, 0}));
    CHECK_THROWS_WITH(recorded.CheckAddresses({&plan, other->data(), 0, 0}),
                      Catch::Contains("was captured at"));
    StepPlan moved = plan;
    const auto activation = std::find_if(
        moved.buffers.begin(), moved.buffers.end(),
        [](const PlanBuffer& b) { return b.cls == BufferClass::kActivations && !b.live.empty(); });
    REQUIRE(activation != moved.buffers.end());
    for (int64_t& offset : activation->offsets) offset += 256;
    CHECK_THROWS_WITH(recorded.CheckAddresses({&moved, arena->data(), 0, 0}),
                      Catch::Contains("was captured at"));
  }
}

}  // namespace
}  // namespace millrace
