// Many microbatches: what the proof does not walk is proved all the same.
#include "runtime/plan/check/checker_repetition.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "runtime/plan/check/checker.h"
#include "tests/runtime/plan/edge_implied.h"
#include "tests/support/plan_case.h"

namespace millrace {
namespace {

using test::PlanCase;

void RequireProved(const StepPlan& plan, const PlanCase& c) {
  const Violations found = FindViolations(plan, c.mesh, c.options.accumulate);
  INFO((found.empty() ? "" : found.front().message));
  REQUIRE(found.empty());
}

// Entries 0 to 8 of a step of four: forward and backward of each, then the update. Entries 2 to 5
// are the middle microbatches, which run the same bodies.
std::vector<PlanCase> CasesOfFour() {
  std::vector<PlanCase> cases;
  for (const GradSync sync : {GradSync::kEvery, GradSync::kLast}) {
    PlanCase c;
    c.mesh = {1, 2};
    c.options.grad_sync = sync;
    c.options.accumulate = 4;
    cases.push_back(c);
    c.precision = test::Mixed(DType::kBF16, DType::kF32, DType::kBF16);
    c.options.prefetch = 2;
    c.options.slots = 3;
    cases.push_back(c);
    c.options.accumulate = 9;
    cases.push_back(c);
  }
  return cases;
}

TEST_CASE("all middle microbatches are one repetition, and any difference ends it",
          "[plan][checker]") {
  PlanCase c = CasesOfFour().front();
  c.options.accumulate = 16;
  StepPlan plan = test::PlanOf(c);
  ProvenRepetition found = FindRepetition(plan.schedule);
  REQUIRE((found.begin == 2 && found.end == 30 && found.period == 2));
  SECTION("a wait missing") { plan.schedule[15].edges.pop_back(); }
  SECTION("a wait for another op") { --plan.schedule[15].edges.back().from_op; }
  SECTION("another body") { plan.schedule[15].body = 1; }
  SECTION("a microbatch out of turn") { plan.schedule[15].microbatch = 3; }
  found = FindRepetition(plan.schedule);
  REQUIRE((found.end <= 15 || found.begin > 9));
  // A wait for an op in the midst of the repetition, behind it.
  plan = test::PlanOf(c);
  plan.schedule.back().edges.push_back({10, 0, 0});
  found = FindRepetition(plan.schedule);
  REQUIRE(found.begin == found.end);
}

void RequireFound(const StepPlan& plan, const PlanCase& c, ViolationKind kind) {
  const Violations found = FindViolations(plan, c.mesh, c.options.accumulate, 1);
  REQUIRE(!found.empty());
  INFO(found.front().message);
  REQUIRE(found.front().kind == kind);
}

TEST_CASE("a wait missing in one of several equal microbatches is found", "[plan][checker]") {
  int missing = 0;
  for (const PlanCase& c : CasesOfFour()) {
    StepPlan plan = test::PlanOf(c);
    RequireProved(plan, c);
    for (size_t e = 2; e < plan.schedule.size(); ++e) {
      const std::vector<Edge> all = plan.schedule[e].edges;
      for (size_t i = 0; i < all.size(); ++i) {
        if (EdgeImplied(plan, plan.schedule, static_cast<int>(e), static_cast<int>(i))) continue;
        std::vector<Edge>& left = plan.schedule[e].edges;
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
        INFO(ToString(c) << ": entry " << e << " edge " << all[i].to_op << " <- "
                         << all[i].from_entry << "." << all[i].from_op);
        RequireFound(plan, c, ViolationKind::kRace);
        left = all;
        ++missing;
      }
    }
  }
  REQUIRE(missing > 100);
}

TEST_CASE("a wait for the wrong microbatch is found where it orders less", "[plan][checker]") {
  int moved = 0;
  for (const PlanCase& c : CasesOfFour()) {
    StepPlan plan = test::PlanOf(c);
    for (size_t e = 4; e < plan.schedule.size(); ++e) {
      for (Edge& edge : plan.schedule[e].edges) {
        if (edge.from_entry < 4) continue;
        const Edge right = edge;
        edge.from_entry -= 2;
        const Violations found = FindViolations(plan, c.mesh, c.options.accumulate, 1);
        const int index = static_cast<int>(&edge - plan.schedule[e].edges.data());
        edge = right;
        const bool implied = EdgeImplied(plan, plan.schedule, static_cast<int>(e), index);
        INFO(ToString(c) << ": entry " << e << " edge " << edge.to_op << " <- " << edge.from_entry
                         << "." << edge.from_op);
        REQUIRE(found.empty() == implied);
        moved += !implied;
      }
    }
  }
  REQUIRE(moved > 50);
}

// Entry 5 runs a body of its own: the one it ran, with one op changed.
template <class Change>
StepPlan WithEntryFive(StepPlan plan, size_t op, const Change& change) {
  Body body = plan.bodies[static_cast<size_t>(plan.schedule[5].body)];
  change(body.ops[op]);
  // Another body would have positions of its own: the timeline is laid out anew with everything
  // that lives in the one also live in the other.
  const int64_t begin = plan.timeline_end(), shift = begin - body.begin;
  for (PlanBuffer& buffer : plan.buffers) {
    std::vector<Interval> live = buffer.live;
    for (const Interval& i : live) {
      const int64_t from = std::max(i.begin, body.begin), to = std::min(i.end, body.end());
      if (from >= to) continue;
      if (buffer.live.back().end == from + shift)
        buffer.live.back().end = to + shift;
      else
        buffer.live.push_back({from + shift, to + shift});
    }
  }
  body.begin = begin;
  plan.schedule[5].body = static_cast<int32_t>(plan.bodies.size());
  plan.bodies.push_back(std::move(body));
  return plan;
}

TEST_CASE("an op or an offset changed in one microbatch only is found", "[plan][checker]") {
  int changed = 0;
  PlanCase c = CasesOfFour().front();
  c.options.accumulate = 6;
  const StepPlan plan = test::PlanOf(c);
  const Body& body = plan.bodies[static_cast<size_t>(plan.schedule[5].body)];
  for (size_t o = 0; o < body.ops.size(); ++o) {
    RequireProved(WithEntryFive(plan, o, [](PlanOp&) {}), c);
    // The op does nothing: what it wrote in the microbatch before is still there, but of another
    // microbatch, or of another stay.
    const StepPlan none = WithEntryFive(plan, o, [](PlanOp& op) { op.op = BeginStepOp<View>{}; });
    bool writes_activation = false;
    ForEachUse(body.ops[o].op, [&](const View& view, Access access, std::string_view) {
      const PlanBuffer& buffer = plan.buffer(view.buffer);
      writes_activation |= access == Access::kWrite && buffer.cls == BufferClass::kActivations;
    });
    if (!writes_activation) continue;
    INFO(body.ops[o].label);
    REQUIRE(!FindViolations(none, c.mesh, c.options.accumulate, 1).empty());
    // The op's views lie beyond their buffers.
    RequireFound(WithEntryFive(plan, o,
                               [](PlanOp& op) {
                                 ForEachView(op.op, [](View& view, Update*, std::string_view) {
                                   view.offset += 1;
                                 });
                               }),
                 c, ViolationKind::kBounds);
    ++changed;
  }
  REQUIRE(changed > 10);
}

TEST_CASE("a wrong microbatch index is found", "[plan][checker]") {
  for (const PlanCase& c : CasesOfFour()) {
    const StepPlan plan = test::PlanOf(c);
    for (size_t e = 0; e + 1 < plan.schedule.size(); ++e) {
      StepPlan wrong = plan;
      for (int m = 0; m < c.options.accumulate; ++m) {
        if (m == plan.schedule[e].microbatch) continue;
        wrong.schedule[e].microbatch = m;
        INFO("entry " << e << " with microbatch " << m);
        RequireFound(wrong, c, ViolationKind::kMicrobatch);
      }
    }
    // Forward and backward agree, but one is taken twice, and another not at all.
    StepPlan twice = plan;
    twice.schedule[4].microbatch = twice.schedule[5].microbatch = 1;
    RequireFound(twice, c, ViolationKind::kMicrobatch);
    // Each is taken as often as the others, but a backward reads another's activations.
    StepPlan swapped = plan;
    std::swap(swapped.schedule[3].microbatch, swapped.schedule[5].microbatch);
    RequireFound(swapped, c, ViolationKind::kMicrobatch);
  }
}

}  // namespace
}  // namespace millrace
