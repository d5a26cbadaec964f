// Which bytes attention moves where sequences are split over ranks.
#include "runtime/plan/nodes/attention/attention.h"

#include <catch2/catch.hpp>
#include <variant>

#include "runtime/plan/cost/cost_model.h"
#include "tests/support/plan_case.h"
#include "tests/support/tiny_models.h"

namespace millrace::test {
namespace {

constexpr int64_t kLayers = 3;
constexpr int kRanks = 2;

PlanCase Split(bool llama, Recompute recompute) {
  PlanCase c;
  c.model = Divisible(llama ? TinyLlama(kLayers) : TinyGpt2(kLayers));
  c.mesh = Mesh().With(Axis::kContext, kRanks);
  c.recompute = recompute;
  c.options.accumulate = 2;
  return c;
}

// Of the keys and values of one microbatch, f32, what a rank sends to the others to gather them or
// to sum their gradients.
int64_t BytesOfKeys(const PlanCase& c, const StepPlan& plan) {
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops)
      if (const auto* attention = std::get_if<AttentionGradOp<View>>(&op.op))
        return (c.mesh.Size(Axis::kContext) - 1) * 4 * attention->q.layout.dims[0] *
               attention->q.layout.dims[1] * 2 * attention->k.layout.dims[2] *
               attention->k.layout.dims[3];
  FAIL("no attention");
  return 0;
}

}  // namespace

TEST_CASE("keys are gathered once forth and once back, whatever is computed again",
          "[plan][attention]") {
  const bool llama = GENERATE(false, true);
  for (const Recompute recompute : {Recompute::kNone, Recompute::kNorms, Recompute::kBlock}) {
    const PlanCase c = Split(llama, recompute);
    CAPTURE(llama, Name(recompute));
    const StepPlan plan = PlanOf(c);
    const int64_t keys = BytesOfKeys(c, plan);
    // Twice, and their gradients summed once; of each microbatch.
    CHECK(WireByPurpose(plan, plan.schedule, c.mesh).exchanges ==
          c.options.accumulate * kLayers * (2 + 1) * keys);
  }
}

TEST_CASE("fused rows' gradient is written in parts, and nothing else is copied for it",
          "[plan][attention]") {
  const PlanCase c = Split(true, Recompute::kNone);
  const StepPlan plan = PlanOf(c);
  int64_t into_gathered = 0, out_of_sums = 0;
  for (const Entry& entry : plan.schedule)
    for (const PlanOp& op : plan.bodies[static_cast<size_t>(entry.body)].ops)
      if (const auto* copy = std::get_if<CopyRowsOp<View>>(&op.op))
        ++(copy->out.rank_stride != 0 ? into_gathered : out_of_sums);
  CHECK(into_gathered == c.options.accumulate * kLayers * 2);
  CHECK(out_of_sums == c.options.accumulate * kLayers);
}

}  // namespace millrace::test
