// Plans for the checker to find wrong: split over ranks, and with one op at a time changed.
#pragma once

#include <catch2/catch.hpp>
#include <vector>

#include "runtime/plan/check/checker.h"
#include "tests/support/plan_case.h"

namespace millrace::test {

// Axes of exchanges beside each other and beside shard, each of 2 ranks: no size tells them apart.
inline std::vector<PlanCase> SplitCases() {
  std::vector<PlanCase> cases;
  PlanCase c;
  c.model = Divisible(TinyGpt2(3));
  c.mesh = Mesh(1, 2).With(Axis::kTensor, 2);
  c.strips = 2;
  c.options.accumulate = 2;
  cases.push_back(c);
  c.model = Divisible(TinyLlama(3));
  c.mesh = Mesh().With(Axis::kContext, 2).With(Axis::kTensor, 2);
  c.strips = 1;
  c.recompute = Recompute::kBlock;
  c.options.accumulate = 1;
  cases.push_back(c);
  c.mesh = Mesh(1, 2).With(Axis::kContext, 2);
  c.precision = Mixed(DType::kBF16, DType::kF32, DType::kBF16);
  c.recompute = Recompute::kNone;
  c.options.downcast = Downcast::kAfterUpdate;
  c.options.allocator = AllocatorKind::kMaxPool;
  cases.push_back(c);
  return cases;
}

// Applies `change` to every op that `wanted` accepts, one at a time, and requires that each is
// reported. Returns how many.
template <class Wanted, class Change>
int RequireEachReported(const PlanCase& c, Wanted&& wanted, Change&& change) {
  const StepPlan plan = PlanOf(c);
  int changed = 0;
  for (size_t b = 0; b < plan.bodies.size(); ++b) {
    for (size_t o = 0; o < plan.bodies[b].ops.size(); ++o) {
      if (!wanted(plan.bodies[b].ops[o])) continue;
      StepPlan wrong = plan;
      change(wrong.bodies[b].ops[o]);
      INFO(ToString(c) << ": " << plan.bodies[b].name << " "
                       << Describe(plan.bodies[b].ops[o], plan));
      REQUIRE(!FindViolations(wrong, c.mesh, c.options.accumulate, 1).empty());
      ++changed;
    }
  }
  return changed;
}

}  // namespace millrace::test
