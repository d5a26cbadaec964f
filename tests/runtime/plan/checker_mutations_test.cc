// Real plans, made wrong: the checker reports every edge, live range and op that is taken away.
#include "tests/runtime/plan/checker_mutations.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>

#include "runtime/plan/check/checker.h"
#include "tests/runtime/plan/checker_testing.h"
#include "tests/runtime/plan/edge_implied.h"

namespace millrace {
namespace {

using Catch::Matchers::Contains;
using test::kAlone;
using test::PlanCase;
using test::RequireEachReported;
using test::RequireProved;

std::vector<PlanCase> Cases() {
  std::vector<PlanCase> cases;
  PlanCase c;
  c.mesh = {1, 2};
  c.options.accumulate = 3;
  cases.push_back(c);  // per-gather f32, direct, sync last
  c.precision = test::Mixed(DType::kF32, DType::kBF16, DType::kF32);
  c.options.downcast = Downcast::kAfterGather;
  c.options.grad_sync = GradSync::kEvery;
  c.options.grad_concat = GradConcat::kEvery;
  c.options.allocator = AllocatorKind::kMaxPool;
  c.options.accumulate = 2;
  cases.push_back(c);
  c.model = test::TinyLlama(4);
  c.mesh = {2, 2};
  c.precision = test::Mixed(DType::kBF16, DType::kF32, DType::kBF16);
  c.options.downcast = Downcast::kAfterUpdate;
  c.options.grad_sync = GradSync::kLast;
  c.options.grad_concat = GradConcat::kLast;
  c.options.allocator = AllocatorKind::kDynamic;
  c.options.prefetch = 2;
  c.options.slots = 3;
  c.options.accumulate = 3;
  cases.push_back(c);
  c.options.reshard = Reshard::kAfterBackward;
  c.options.downcast = Downcast::kPerGather;
  c.options.allocator = AllocatorKind::kColoured;
  c.options.accumulate = 1;
  c.recompute = Recompute::kBlock;
  cases.push_back(c);
  c.options.reshard = Reshard::kNever;
  c.options.prefetch = 0;
  c.options.accumulate = 3;
  cases.push_back(c);
  c.mesh = {1, 1};
  cases.push_back(c);
  for (const PlanCase& split : test::SplitCases()) cases.push_back(split);
  c.model = test::TinyGpt2(3);  // with biases, which stay in the compute dtype
  c.mesh = {2, 2};
  c.linears = LinearEncoding::kFp8Block;
  c.gather = WeightGather::kLinear;
  c.precision = test::Mixed(DType::kBF16, DType::kF32, DType::kBF16);
  c.recompute = Recompute::kNone;
  c.options = {};
  c.options.downcast = Downcast::kAfterUpdate;
  c.options.accumulate = 2;
  cases.push_back(c);
  c.model = test::TinyLlama(3);
  c.mesh = Mesh(1, 2).With(Axis::kContext, 2);
  c.model.seq_len = 8;
  c.linears = LinearEncoding::kFp8Tensor;
  c.precision = {};
  c.options.allocator = AllocatorKind::kMaxPool;
  c.options.accumulate = 1;
  cases.push_back(c);
  return cases;
}

TEST_CASE("every derived edge is needed", "[plan][checker]") {
  int edges = 0;
  for (const PlanCase& c : Cases()) {
    StepPlan plan = test::PlanOf(c);
    RequireProved(plan, c.mesh, c.options.accumulate);
    for (auto* schedule : {&plan.schedule, &plan.prologue}) {
      for (size_t e = 0; e < schedule->size(); ++e) {
        const std::vector<Edge> all = (*schedule)[e].edges;
        for (size_t i = 0; i < all.size(); ++i, ++edges) {
          if (EdgeImplied(plan, *schedule, static_cast<int>(e), static_cast<int>(i))) continue;
          std::vector<Edge>& left = (*schedule)[e].edges;
          left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
          const auto op = [&](int32_t entry, int32_t at) {
            const Body& body =
                plan.bodies[static_cast<size_t>((*schedule)[static_cast<size_t>(entry)].body)];
            return body.name + ": " + Describe(body.ops[static_cast<size_t>(at)], plan);
          };
          INFO(ToString(c) << "\n"
                           << op(static_cast<int32_t>(e), all[i].to_op) << " waits for\n"
                           << op(all[i].from_entry, all[i].from_op));
          const Violations found = FindViolations(plan, c.mesh, c.options.accumulate, 1);
          REQUIRE(!found.empty());
          REQUIRE(found.front().kind == ViolationKind::kRace);
          left = all;
        }
      }
    }
  }
  REQUIRE(edges > 100);
}

// Positions at which an op touches the buffer.
std::vector<int64_t> AccessesOf(const StepPlan& plan, int32_t buffer) {
  std::vector<int64_t> positions;
  for (const Body& body : plan.bodies)
    for (size_t o = 0; o < body.ops.size(); ++o)
      ForEachUse(body.ops[o].op, [&](const View& view, Access, std::string_view) {
        if (view.buffer.value == buffer) positions.push_back(body.begin + static_cast<int64_t>(o));
      });
  return positions;
}

TEST_CASE("a live range one op shorter is reported", "[plan][checker]") {
  int shortened = 0;
  for (const PlanCase& c : Cases()) {
    const StepPlan plan = test::PlanOf(c);
    for (size_t b = 0; b < plan.buffers.size(); ++b) {
      const PlanBuffer& buffer = plan.buffers[b];
      const std::vector<int64_t> accesses = AccessesOf(plan, static_cast<int32_t>(b));
      for (size_t i = 0; i < buffer.live.size(); ++i) {
        const Interval live = buffer.live[i];
        const bool seam_begin =
            std::any_of(plan.bodies.begin(), plan.bodies.end(),
                        [&](const Body& body) { return body.begin == live.begin; });
        for (const bool at_end : {false, true}) {
          StepPlan shorter = plan;
          Interval& range = shorter.buffers[b].live[i];
          if (at_end) {
            // A reduction in flight reserves its bucket beyond the last access; the
            // reserve is no claim of the checker. Carried buffers are held to the end of
            // the body for the next one.
            const auto last = std::lower_bound(accesses.begin(), accesses.end(), live.end);
            if (last == accesses.begin()) continue;
            if (buffer.scope != BufferScope::kCarried) range.end = *(last - 1) + 1;
            --range.end;
          } else {
            ++range.begin;
          }
          if (range.begin >= range.end && shorter.buffers[b].offsets.size() == 1) {
            shorter.buffers[b].live.erase(shorter.buffers[b].live.begin() +
                                          static_cast<std::ptrdiff_t>(i));
          }
          // A carried stay of the dynamic allocator is live always and has slack
          // where the others are not live.
          if (buffer.scope == BufferScope::kCarried &&
              c.options.allocator == AllocatorKind::kDynamic)
            continue;
          INFO(ToString(c) << ": " << buffer.name << " [" << live.begin << ", " << live.end << ") "
                           << (at_end ? "end" : "begin") << " seam " << seam_begin);
          REQUIRE(!FindViolations(shorter, c.mesh, c.options.accumulate, 1).empty());
          ++shortened;
        }
      }
    }
  }
  REQUIRE(shortened > 500);
}

// Padded rows of a table are zeroed, then written with the rest of its gradient: only what lies
// between parameters depends on the zeroing.
bool ZeroesBetweenParams(const ZeroRangesOp<View>& op, const std::string& label,
                         const ShardLayout& layout) {
  for (const FlatParam& flat : layout.flats) {
    if (label != "zero_gaps/" + flat.name) continue;
    for (const Range& range : *op.ranges)
      if (std::none_of(flat.params.begin(), flat.params.end(), [&](ParamId id) {
            return layout.param(id).begin <= range.begin && range.end <= layout.param(id).end;
          }))
        return true;
  }
  return false;
}

TEST_CASE("a gather, cast or zeroing that does nothing is reported", "[plan][checker]") {
  int dropped = 0;
  for (const PlanCase& c : Cases()) {
    // There a carried bucket has bytes of its own: gathering unchanged weights again changes
    // nothing.
    if (c.options.allocator == AllocatorKind::kDynamic) continue;
    dropped += RequireEachReported(
        c,
        [layout = test::LayoutOf(c)](const PlanOp& op) {
          if (const auto* zero = std::get_if<ZeroRangesOp<View>>(&op.op))
            return ZeroesBetweenParams(*zero, op.label, layout);
          // It overwrites bytes that hold a gradient already: to leave it out is
          // wrong, but not undefined.
          if (op.label.starts_with("outer_cast/")) return false;
          if (const auto* concat = std::get_if<ConcatOp<View>>(&op.op))
            return concat->update == Update::kOverwrite;
          return std::holds_alternative<AllGatherOp<View>>(op.op) ||
                 std::holds_alternative<CastOp<View>>(op.op) ||
                 std::holds_alternative<ShardMagnitudesOp<View>>(op.op) ||
                 std::holds_alternative<FlatScalesOp<View>>(op.op) ||
                 std::holds_alternative<ShardQuantizeOp<View>>(op.op) ||
                 std::holds_alternative<ReduceScatterOp<View>>(op.op);
        },
        [](PlanOp& op) {
          BeginStepOp<View> nothing;  // no operand: touches nothing
          op.op = nothing;
        });
  }
  REQUIRE(dropped > 100);
}

// A prologue begins and ends with all streams joined, and has nothing on the compute stream.
TEST_CASE("a collective on another stream is reported unless nothing there can tell",
          "[plan][checker]") {
  for (const PlanCase& c : Cases()) {
    if (c.mesh.world() == 1) continue;
    const StepPlan plan = test::PlanOf(c);
    std::set<std::string> prologue;
    for (const Entry& entry : plan.prologue)
      for (const PlanOp& op : plan.bodies[static_cast<size_t>(entry.body)].ops)
        prologue.insert(Describe(op, plan));
    // The stream that waits for an op first: of a gather that of a norm, where rows are exchanged.
    std::map<std::string, StreamId> waits;
    for (const Entry& entry : plan.schedule)
      for (const Edge& edge : entry.edges) {
        const auto op = [&](int32_t of, int32_t at) -> const PlanOp& {
          const Entry& its = plan.schedule[static_cast<size_t>(of)];
          return plan.bodies[static_cast<size_t>(its.body)].ops[static_cast<size_t>(at)];
        };
        const auto self = static_cast<int32_t>(&entry - plan.schedule.data());
        waits.emplace(Describe(op(edge.from_entry, edge.from_op), plan),
                      op(self, edge.to_op).stream);
      }
    const int moved = RequireEachReported(
        c,
        [&](const PlanOp& op) {
          // An exchange that waits for nothing more than those before it: compute has passed that.
          return IsCollective(op.op) && op.stream != StreamId::kExchange &&
                 !prologue.contains(Describe(op, plan));
        },
        [&](PlanOp& op) {
          const auto waiting = waits.find(Describe(op, plan));
          op.stream = waiting == waits.end() ? StreamId::kCompute : waiting->second;
        });
    REQUIRE(moved > 10);
  }
}

TEST_CASE("a bucket moved onto another live buffer is reported", "[plan][checker]") {
  const PlanCase c = Cases().front();
  const StepPlan plan = test::PlanOf(c);
  int moved = 0;
  for (size_t a = 0; a < plan.buffers.size(); ++a) {
    for (size_t b = 0; b < plan.buffers.size(); ++b) {
      const PlanBuffer &from = plan.buffers[a], &to = plan.buffers[b];
      if (a == b || from.live.empty() || to.live.empty() || from.bytes == 0 || to.bytes == 0)
        continue;
      if (from.scope == BufferScope::kPersistent || to.scope == BufferScope::kPersistent) continue;
      const bool together = std::any_of(from.live.begin(), from.live.end(), [&](const Interval& x) {
        return std::any_of(to.live.begin(), to.live.end(),
                           [&](const Interval& y) { return x.begin < y.end && y.begin < x.end; });
      });
      if (!together) continue;
      StepPlan wrong = plan;
      wrong.buffers[a].offsets = wrong.buffers[b].offsets;
      INFO(from.name << " onto " << to.name);
      REQUIRE(!FindViolations(wrong, c.mesh, c.options.accumulate, 1).empty());
      ++moved;
    }
  }
  REQUIRE(moved > 100);
}

TEST_CASE("an update that does not gather for the next step is reported as stale",
          "[plan][checker]") {
  PlanCase c;
  c.mesh = {1, 2};
  c.options.prefetch = 2;
  c.options.slots = 3;
  StepPlan plan = test::PlanOf(c);
  Body& update = *std::find_if(plan.bodies.begin(), plan.bodies.end(),
                               [](const Body& body) { return body.name == "update"; });
  int found = 0;
  for (PlanOp& op : update.ops) {
    if (op.stream != StreamId::kGather) continue;
    op.op = BeginStepOp<View>{};
    ++found;
  }
  REQUIRE(found == 2);
  const Violations violations = FindViolations(plan, c.mesh, 1);
  REQUIRE(!violations.empty());
  REQUIRE_THAT(violations.front().message,
               Contains("[step 2 microbatch 0]") && Contains("bucket/embed"));
}

TEST_CASE("an update that leaves what is gathered in FP8 as it was is reported as stale",
          "[plan][checker]") {
  PlanCase c;
  c.mesh = {1, 2};
  c.linears = LinearEncoding::kFp8Block;
  c.gather = WeightGather::kLinear;
  c.options.downcast = Downcast::kAfterUpdate;
  const StepPlan plan = test::PlanOf(c);
  RequireProved(plan, c.mesh);
  const auto update = std::find_if(plan.bodies.begin(), plan.bodies.end(),
                                   [](const Body& body) { return body.name == "update"; });
  const std::map<std::string, std::vector<std::string>> left = {
      {"scales/h.0", {"scales/h.0", "rest/h.0"}}, {"quantize/h.0", {"payload/h.0"}}};
  for (const auto& [label, states] : left) {
    StepPlan wrong = plan;
    std::vector<PlanOp>& ops = wrong.bodies[static_cast<size_t>(update - plan.bodies.begin())].ops;
    const auto op =
        std::find_if(ops.begin(), ops.end(), [&](const PlanOp& of) { return of.label == label; });
    REQUIRE(op != ops.end());
    op->op = BeginStepOp<View>{};
    std::string all;
    for (const Violation& violation : FindViolations(wrong, c.mesh, 1))
      if (violation.kind == ViolationKind::kStale) all += violation.message + "\n";
    for (const std::string& state : states)
      CHECK_THAT(all, Contains("reads " + state + ", made from master/h.0 before its latest"));
  }
}

TEST_CASE("logits survive until the host reads them", "[plan][checker]") {
  PlanCase c;
  c.kind = "generate";
  StepPlan plan = test::PlanOf(c);
  RequireProved(plan);
  PlanBuffer& logits = plan.buffers[static_cast<size_t>(plan.FindOutput("logits")->buffer.value)];
  logits.live = {{logits.live[0].begin, plan.bodies[0].end() - 1}};
  REQUIRE(!FindViolations(plan, kAlone, 1).empty());
}

}  // namespace
}  // namespace millrace
