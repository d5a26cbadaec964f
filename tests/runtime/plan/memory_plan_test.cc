// Lifetimes and addresses of planned buffers, against rules written here. That live buffers never
// overlap is the checker's to prove.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "runtime/plan/schedule/allocator_table.h"
#include "runtime/plan/schedule/planner.h"
#include "tests/support/plan_case.h"

namespace millrace {
namespace {

using test::PlanCase;
using test::PlanOf;

int64_t Aligned(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

PlanCase Sharded(int accumulate = 3) {
  PlanCase c;
  c.model = test::TinyGpt2(4);
  c.mesh = {1, 2};
  c.options.accumulate = accumulate;
  return c;
}

const PlanBuffer& Named(const StepPlan& plan, const std::string& name) {
  const auto it = std::find_if(plan.buffers.begin(), plan.buffers.end(),
                               [&](const PlanBuffer& b) { return b.name == name; });
  REQUIRE(it != plan.buffers.end());
  return *it;
}

const Body& BodyAt(const StepPlan& plan, int64_t position) {
  return *std::find_if(plan.bodies.begin(), plan.bodies.end(),
                       [&](const Body& b) { return b.begin <= position && position < b.end(); });
}

// "first", "middle", "last", "only"; "update", "prologue".
std::string PartOf(const Body& body) { return body.name.substr(body.name.find('.') + 1); }

// Positions at which an op touches each buffer.
std::vector<std::vector<int64_t>> Accesses(const StepPlan& plan) {
  std::vector<std::vector<int64_t>> at(plan.buffers.size());
  for (const Body& body : plan.bodies)
    for (size_t o = 0; o < body.ops.size(); ++o)
      ForEachUse(body.ops[o].op, [&](const View& view, Access, std::string_view) {
        at[static_cast<size_t>(view.buffer.value)].push_back(body.begin + static_cast<int64_t>(o));
      });
  return at;
}

TEST_CASE("an activation lives from its first to its last use in each microbatch, and not between",
          "[plan][memory]") {
  const StepPlan plan = PlanOf(Sharded());
  const auto accesses = Accesses(plan);
  int checked = 0;
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const PlanBuffer& buffer = plan.buffers[i];
    if (buffer.cls != BufferClass::kActivations) continue;
    std::map<std::string, Interval> spans;
    for (const int64_t at : accesses[i]) {
      const auto [it, fresh] = spans.try_emplace(PartOf(BodyAt(plan, at)), Interval{at, at + 1});
      it->second.begin = std::min(it->second.begin, at);
      it->second.end = std::max(it->second.end, at + 1);
    }
    INFO(buffer.name);
    std::set<int64_t> begins, expected;
    for (const Interval& live : buffer.live) begins.insert(live.begin);
    for (const auto& [part, span] : spans) expected.insert(span.begin);
    if (buffer.live.size() == spans.size()) REQUIRE(begins == expected);
    int64_t live = 0, used = 0;
    for (const Interval& range : buffer.live) live += range.end - range.begin;
    for (const auto& [part, span] : spans) used += span.end - span.begin;
    REQUIRE(live == used);
    ++checked;
  }
  REQUIRE(checked > 20);
}

TEST_CASE("an accumulator lives from the first microbatch to the reduction", "[plan][memory]") {
  PlanCase c = Sharded();
  c.options.grad_sync = GradSync::kLast;
  c.options.grad_concat = GradConcat::kDirect;
  const StepPlan direct = PlanOf(c);
  for (const char* name : {"grad/embed", "grad/h.0", "grad/h.3", "grad/head"}) {
    const PlanBuffer& bucket = Named(direct, name);
    REQUIRE(bucket.scope == BufferScope::kStep);
    REQUIRE(bucket.live.size() == 1);
    REQUIRE(PartOf(BodyAt(direct, bucket.live[0].begin)) == "first");
    REQUIRE(PartOf(BodyAt(direct, bucket.live[0].end - 1)) == "last");
    const PlanBuffer& shard = Named(direct, "grad_shard/" + std::string(name).substr(5));
    REQUIRE(PartOf(BodyAt(direct, shard.live[0].begin)) == "last");
    REQUIRE(BodyAt(direct, shard.live[0].end - 1).name == "update");
  }
  c.options.grad_sync = GradSync::kEvery;
  const StepPlan every = PlanOf(c);
  REQUIRE(Named(every, "grad/h.0").live.size() == 3);  // given back in each microbatch
  REQUIRE(Named(every, "grad_shard/h.0").live.size() == 1);
}

TEST_CASE("a carried bucket is kept over the seams, and free in between", "[plan][memory]") {
  const StepPlan plan = PlanOf(Sharded());
  const PlanBuffer& embed = Named(plan, "bucket/embed");
  REQUIRE(embed.scope == BufferScope::kCarried);
  std::map<std::string, const Body*> bodies;
  for (const Body& body : plan.bodies) bodies[body.name] = &body;
  const auto live_at = [&](int64_t position) {
    return std::any_of(embed.live.begin(), embed.live.end(),
                       [&](const Interval& i) { return i.begin <= position && position < i.end; });
  };
  for (const char* name : {"forward.first", "forward.middle", "forward.last"})
    REQUIRE(live_at(bodies[name]->begin));
  for (const char* name : {"backward.first", "backward.middle", "update", "prologue"})
    REQUIRE(live_at(bodies[name]->end() - 1));
  REQUIRE_FALSE(
      live_at(bodies["backward.last"]->end() - 1));  // the update gathers again, in the new version
  REQUIRE_FALSE(live_at(bodies["update"]->begin));
}

// The reductions of a plan with one backward: position, flat.
std::vector<std::pair<int64_t, std::string>> Reductions(const StepPlan& plan) {
  std::vector<std::pair<int64_t, std::string>> reduces;
  for (const Body& body : plan.bodies)
    for (size_t o = 0; o < body.ops.size(); ++o)
      if (std::holds_alternative<ReduceScatterOp<View>>(body.ops[o].op))
        reduces.emplace_back(body.begin + static_cast<int64_t>(o), body.ops[o].label.substr(7));
  REQUIRE(reduces.size() == 8);
  return reduces;
}

PlanCase OneBackward() {
  PlanCase c = Sharded(1);
  c.model = test::TinyGpt2(6);
  c.options.grad_sync = GradSync::kEvery;
  return c;
}

TEST_CASE("a reduction in flight keeps its bucket until reduce_depth later ones are issued",
          "[plan][memory]") {
  PlanCase c = OneBackward();
  for (int depth = 0; depth <= 3; ++depth) {
    c.options.reduce_depth = depth;
    const StepPlan plan = PlanOf(c);
    const auto reduces = Reductions(plan);
    for (size_t r = 0; r < reduces.size(); ++r) {
      const size_t later = r + static_cast<size_t>(depth);
      const int64_t until = later < reduces.size()
                                ? std::max(reduces[later].first, reduces[r].first + 1)
                                : BodyAt(plan, reduces[r].first).end();
      INFO("depth " << depth << " reduction of " << reduces[r].second);
      REQUIRE(Named(plan, "grad/" + reduces[r].second).live.back().end == until);
    }
  }
}

// compute:  ... grad i | grad i+1 ...
// reduce:        reduce i-1 ...... | cast i | scan i | reduce i
// Who writes where bucket i was waits for cast i, and so for reduction i-1. With a depth of d that
// shall be d reductions before the last one issued: the bucket is held for d-1 later ones.
TEST_CASE("a bucket that is cast for the wire is held for one reduction less", "[plan][memory]") {
  PlanCase c = OneBackward();
  c.precision = test::Mixed(DType::kBF16, DType::kBF16, DType::kF32);
  for (int depth = 0; depth <= 3; ++depth) {
    c.options.reduce_depth = depth;
    const StepPlan plan = PlanOf(c);
    const auto accesses = Accesses(plan);
    const auto reduces = Reductions(plan);
    for (size_t r = 0; r + 1 < reduces.size(); ++r) {  // the last cast is the compute stream's
      const auto until = [&](int count) {
        const size_t later = r + static_cast<size_t>(count);
        return later < reduces.size() ? reduces[later].first : BodyAt(plan, reduces[r].first).end();
      };
      INFO("depth " << depth << " reduction of " << reduces[r].second);
      const PlanBuffer& bucket = Named(plan, "grad/" + reduces[r].second);
      const int64_t used = accesses[static_cast<size_t>(&bucket - plan.buffers.data())].back() + 1;
      REQUIRE(used < reduces[r].first);  // the cast is behind it no more
      REQUIRE(bucket.live.back().end == (depth > 1 ? until(depth - 1) : used));
      REQUIRE(Named(plan, "grad_wire/" + reduces[r].second).live.back().end ==
              std::max(until(depth), reduces[r].first + 1));
    }
  }
}

TEST_CASE("a workspace lives for the op that uses it", "[plan][memory]") {
  const StepPlan plan = PlanOf(Sharded());
  const auto accesses = Accesses(plan);
  int workspaces = 0;
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    if (plan.buffers[i].cls != BufferClass::kWorkspaces || accesses[i].empty()) continue;
    int64_t live = 0;
    for (const Interval& range : plan.buffers[i].live) live += range.end - range.begin;
    REQUIRE(live ==
            static_cast<int64_t>(std::set<int64_t>(accesses[i].begin(), accesses[i].end()).size()));
    ++workspaces;
  }
  REQUIRE(workspaces > 0);
}

TEST_CASE("classes and lower bound are what the lifetimes add up to", "[plan][memory]") {
  for (const AllocatorKind kind :
       {AllocatorKind::kPacked, AllocatorKind::kPersistent, AllocatorKind::kMaxPool}) {
    PlanCase c = Sharded();
    c.options.allocator = kind;
    const StepPlan plan = PlanOf(c);
    int64_t bound = 0;
    std::array<int64_t, kBufferClasses> peak{};
    for (int64_t at = 0; at < plan.timeline_end(); ++at) {
      int64_t live = 0;
      std::array<int64_t, kBufferClasses> by_class{};
      std::set<int32_t> groups;  // one bucket counts once, though it has several stays
      for (const PlanBuffer& buffer : plan.buffers)
        for (const Interval& range : buffer.live) {
          if (!(range.begin <= at && at < range.end)) continue;
          if (buffer.group >= 0) REQUIRE(groups.insert(buffer.group).second);
          live += Aligned(buffer.bytes);
          by_class[static_cast<size_t>(buffer.cls)] += Aligned(buffer.bytes);
        }
      bound = std::max(bound, live);
      for (size_t k = 0; k < peak.size(); ++k) peak[k] = std::max(peak[k], by_class[k]);
    }
    REQUIRE(plan.lower_bound == bound);
    REQUIRE(plan.peak_by_class == peak);
    REQUIRE(plan.arena_bytes >= bound);
  }
}

TEST_CASE("packing needs no more than pools apart, and never less than the bound",
          "[plan][memory]") {
  std::map<AllocatorKind, int64_t> arena;
  for (const AllocatorKind kind :
       {AllocatorKind::kDynamic, AllocatorKind::kPersistent, AllocatorKind::kFixed,
        AllocatorKind::kMaxPool, AllocatorKind::kColoured, AllocatorKind::kPacked}) {
    PlanCase c = Sharded();
    c.model = test::TinyGpt2(8);
    c.options.allocator = kind;
    const StepPlan plan = PlanOf(c);
    arena[kind] = plan.arena_bytes;
    REQUIRE((plan.param_pool_bytes > 0) == (kind != AllocatorKind::kPacked));
  }
  for (const auto& [kind, bytes] : arena) REQUIRE(arena[AllocatorKind::kPacked] <= bytes);
  REQUIRE(arena[AllocatorKind::kPersistent] > arena[AllocatorKind::kPacked]);
}

TEST_CASE("the table of allocators has the bytes of a plan with each", "[plan][memory]") {
  PlanCase c;
  c.model = test::Unequal(GENERATE(true, false) ? test::TinyGpt2() : test::TinyLlama());
  c.mesh = GENERATE(Mesh(1, 1), Mesh(1, 3), Mesh(2, 2));
  c.precision = test::Mixed(DType::kF32, DType::kF32, DType::kBF16);
  c.options.accumulate = GENERATE(1, 3);
  c.options.grad_sync = GENERATE(GradSync::kEvery, GradSync::kLast);
  c.options.reshard = GENERATE(Reshard::kNever, Reshard::kAfterForward);
  c.options.reduce_depth = 2;
  c.options.shape = {.batch = 2, .seq = c.model.seq_len};
  const AllocatorTable table =
      CompareAllocators(LayoutOf(c), StatesOf(c), ProgramOf(c), c.options, PlanOf(c).reshard);
  REQUIRE(table.rows.size() == 6);
  for (const AllocatorRow& row : table.rows) {
    c.options.allocator = row.kind;
    const StepPlan plan = PlanOf(c);
    INFO(ToString(c));
    CHECK(row.bytes.arena == plan.arena_bytes);
    CHECK(table.lower_bound.arena == plan.lower_bound);
    CHECK(row.bytes.parameters >= table.lower_bound.parameters);
    CHECK(row.bytes.gradients >= table.lower_bound.gradients);
    if (row.kind == AllocatorKind::kPacked) continue;  // its plan has no pools apart
    CHECK(row.bytes.parameters == plan.param_pool_bytes);
    CHECK(row.bytes.gradients == plan.grad_pool_bytes);
  }
}

TEST_CASE("the dynamic allocator may move a stay, but not what is carried", "[plan][memory]") {
  PlanCase c = Sharded();
  c.options.allocator = AllocatorKind::kDynamic;
  c.options.prefetch = 2;
  c.options.slots = 3;
  const StepPlan plan = PlanOf(c);
  int carried = 0;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (buffer.offsets.empty()) continue;
    REQUIRE((buffer.offsets.size() == 1 || buffer.offsets.size() == buffer.live.size()));
    if (buffer.scope != BufferScope::kCarried) continue;
    REQUIRE(buffer.live == std::vector<Interval>{{0, plan.timeline_end()}});
    ++carried;
  }
  REQUIRE(carried == 2);
}

}  // namespace
}  // namespace millrace
