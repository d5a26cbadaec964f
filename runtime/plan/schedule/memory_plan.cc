// Lifetimes from uses, addresses from lifetimes. See step_plan.h for scopes
// and the canonical timeline.
#include <algorithm>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/plan/schedule/pool_items.h"

namespace millrace {
namespace {

// A stretch of the timeline that runs as one: forward and backward of one microbatch variant, the
// update, the prologue.
struct Region {
  int64_t begin = 0, end = 0;
  bool microbatch = false;
};

std::vector<Region> Regions(const StepPlan& plan) {
  std::vector<Region> regions;
  for (const Body& body : plan.bodies) {
    if (body.phase == Phase::kBackward)
      regions.back().end = body.end();
    else
      regions.push_back({body.begin, body.end(), body.phase == Phase::kForward});
  }
  return regions;
}

using Positions = std::vector<int64_t>;  // ascending

IdVector<BufferId, Positions> CollectAccesses(const StepPlan& plan) {
  IdVector<BufferId, Positions> accesses(plan.buffers.size());
  for (const Body& body : plan.bodies) {
    int64_t position = body.begin;
    for (const PlanOp& op : body.ops) {
      ForEachUse(op.op, [&](const View& view, Access, std::string_view) {
        Positions& list = accesses[view.buffer];
        if (list.empty() || list.back() != position) list.push_back(position);
      });
      ++position;
    }
  }
  return accesses;
}

// [first access, last access] inside [begin, end), if any.
void AddSpan(const Positions& accesses, int64_t begin, int64_t end, std::vector<Interval>* live) {
  const auto first = std::lower_bound(accesses.begin(), accesses.end(), begin);
  const auto last = std::lower_bound(accesses.begin(), accesses.end(), end);
  if (first != last) live->push_back({*first, *(last - 1) + 1});
}

// Read from the beginning of each region until its last use, and held from where it is filled to
// the region's end.
std::vector<Interval> CarriedLife(const Positions& accesses, const Positions& produced,
                                  const std::vector<Region>& regions, bool whole_step) {
  std::vector<Interval> live;
  std::vector<Region> merged;
  for (const Region& region : regions) {
    if (whole_step && region.microbatch && !merged.empty() && merged.back().microbatch)
      merged.back().end = region.end;
    else
      merged.push_back(region);
  }
  for (const Region& region : merged) {
    const auto filled = std::lower_bound(produced.begin(), produced.end(), region.begin);
    const int64_t fill = filled != produced.end() && *filled < region.end ? *filled : region.end;
    if (region.microbatch) {
      const auto last = std::lower_bound(accesses.begin(), accesses.end(), fill);
      if (last != accesses.begin() && *(last - 1) >= region.begin)
        live.push_back({region.begin, *(last - 1) + 1});
    }
    if (fill < region.end) live.push_back({fill, region.end});
  }
  return live;
}

// What ops beside the compute stream read and write is kept until kOpsBeside later ops have been
// issued, so that the compute stream need not wait for its bytes at once.
constexpr int64_t kOpsBeside = 12;

void HoldOperandsBeside(StepPlan& plan) {
  IdVector<BufferId, char> held(plan.buffers.size());
  for (const Body& body : plan.bodies) {
    int64_t position = body.begin;
    for (const PlanOp& op : body.ops) {
      if (op.stream == StreamId::kReduce && !IsCollective(op.op))
        ForEachUse(op.op, [&](const View& view, Access, std::string_view) {
          PlanBuffer& buffer = plan.buffer(view.buffer);
          // A bucket has its copies, and its own rule.
          if (buffer.cls != BufferClass::kActivations && buffer.cls != BufferClass::kWorkspaces)
            return;
          buffer.live.push_back({position, std::min(position + kOpsBeside, body.end())});
          held[view.buffer] = true;
        });
      ++position;
    }
  }
  for (const BufferId id : held.ids())
    if (held[id]) Normalise(&plan.buffer(id).live);
}

// The reduction, behind the r-th, with which one of the `count`-th other unit has been issued.
size_t LaterReduction(const std::vector<ReducePoint>& reduces, size_t r, int count) {
  std::vector<UnitId> seen = {reduces[r].unit};
  size_t later = r;
  while (count > 0 && ++later < reduces.size()) {
    if (std::find(seen.begin(), seen.end(), reduces[later].unit) != seen.end() &&
        reduces[later].body == reduces[r].body)
      continue;
    seen.push_back(reduces[later].unit);
    --count;
  }
  return later;
}

// A reduction in flight keeps its bytes until those of `reduce_depth` later units have been issued.
// Else the compute stream would get them at once, and wait for the network before it writes there.
void HoldReduced(StepBuilder& b) {
  StepPlan& plan = b.plan;
  for (size_t r = 0; r < b.reduces.size(); ++r) {
    const ReducePoint& point = b.reduces[r];
    const Body& body = plan.bodies[static_cast<size_t>(point.body)];
    // What the op at `op` of the body uses, until `count` later units' reductions have been issued.
    const auto hold = [&](BufferId id, int op, int count) {
      const size_t later = LaterReduction(b.reduces, r, count);
      const bool same_body = later < b.reduces.size() && b.reduces[later].body == point.body;
      const int64_t at = body.begin + op;
      const int64_t until = same_body ? body.begin + b.reduces[later].op : body.end();
      std::vector<Interval>& live = plan.buffer(id).live;
      for (Interval& i : live)
        if (i.begin <= at && at < i.end) i.end = std::max(i.end, until);
      Normalise(&live);
    };
    for (const BufferId id : point.buffers) hold(id, point.op, b.options.reduce_depth);
    if (point.cast && b.options.reduce_depth > 1)
      hold(point.cast_from, *point.cast, b.options.reduce_depth - 1);
  }
}

void ComputeLifetimes(StepBuilder& b) {
  StepPlan& plan = b.plan;
  const std::vector<Region> regions = Regions(plan);
  const IdVector<BufferId, Positions> all = CollectAccesses(plan);
  const int64_t end = plan.timeline_end();
  IdVector<BufferId, char> beside(plan.buffers.size());
  for (const auto& [key, id] : b.workspaces)
    beside[id] = key.second != StreamId::kCompute && !b.options.overlap_weight_gradients;
  for (const BufferId id : plan.buffer_ids()) {
    PlanBuffer& buffer = plan.buffer(id);
    const Positions& accesses = all[id];
    if (buffer.scope == BufferScope::kPersistent ||
        (buffer.scope == BufferScope::kEra && !accesses.empty())) {
      buffer.live = {{0, end}};
      continue;
    }
    if (accesses.empty()) continue;
    switch (buffer.scope) {
      case BufferScope::kStep:
        AddSpan(accesses, 0, end, &buffer.live);
        break;
      case BufferScope::kMicrobatch:
        // Nothing survives between two uses of a workspace; but for the bytes of one of another
        // stream the compute stream would wait (with products there: HoldOperandsBeside).
        if (buffer.cls == BufferClass::kWorkspaces && !beside[id]) {
          for (int64_t position : accesses) buffer.live.push_back({position, position + 1});
        } else {
          for (const Region& region : regions)
            AddSpan(accesses, region.begin, region.end, &buffer.live);
        }
        break;
      case BufferScope::kCarried: {
        Positions produced;
        for (const auto& [body, op] : b.produced[id])
          produced.push_back(plan.bodies[static_cast<size_t>(body)].begin + op);
        if (produced.empty())
          buffer.live = {{accesses.front(), end}};  // read by the host when the plan has run
        else
          buffer.live = CarriedLife(accesses, produced, regions, b.how[id].whole_step);
        break;
      }
      case BufferScope::kPersistent:
      case BufferScope::kEra:
        break;
    }
    Normalise(&buffer.live);
  }

  if (b.options.overlap_weight_gradients) HoldOperandsBeside(plan);
  HoldReduced(b);
}

int64_t Place(StepBuilder& b, const PoolItems& pool, const PoolOptions& options, int64_t base) {
  if (pool.items.empty()) return 0;
  const Placement placement = PlanPool(pool.items, options);
  VerifyPlacement(pool.items, placement);
  for (size_t k = 0; k < pool.items.size(); ++k) {
    for (const BufferId id : pool.buffers[k]) {
      std::vector<int64_t>& offsets = b.plan.buffer(id).offsets;
      if (placement.interval_offsets.empty()) {
        offsets = {base + placement.offsets[k]};
      } else {
        offsets = placement.interval_offsets[k];
        for (int64_t& offset : offsets) offset += base;
      }
    }
  }
  b.plan.notes.insert(b.plan.notes.end(), placement.notes.begin(), placement.notes.end());
  return placement.pool_bytes;
}

int64_t Aligned(int64_t bytes) { return RoundUp(bytes, kArenaAlignment); }

void SumPeaks(StepPlan& plan) {
  std::vector<std::array<int64_t, kBufferClasses>> change(static_cast<size_t>(plan.timeline_end()) +
                                                          1);
  for (const PlanBuffer& buffer : plan.buffers) {
    for (const Interval& i : buffer.live) {
      change[static_cast<size_t>(i.begin)][static_cast<size_t>(buffer.cls)] +=
          Aligned(buffer.bytes);
      change[static_cast<size_t>(i.end)][static_cast<size_t>(buffer.cls)] -= Aligned(buffer.bytes);
    }
  }
  std::array<int64_t, kBufferClasses> live{};
  for (const auto& at : change) {
    for (size_t c = 0; c < live.size(); ++c) {
      live[c] += at[c];
      plan.peak_by_class[c] = std::max(plan.peak_by_class[c], live[c]);
    }
  }
}

}  // namespace

void MeasureBuffers(StepBuilder& b) {
  ComputeLifetimes(b);
  StepPlan& plan = b.plan;
  plan.persistent_bytes = b.states.run_bytes;
  for (const BufferId state : b.states.ids()) {
    PlanBuffer& buffer = plan.buffer(state);
    if (buffer.live.empty()) continue;  // of an era that this plan does not use
    buffer.offsets = {b.states.tensor(state).offset};
    if (buffer.scope == BufferScope::kEra)
      plan.persistent_bytes = b.states.run_bytes + b.states.era_bytes;
  }
  plan.lower_bound = plan.persistent_bytes + LowerBound(ItemsOf(b, kAnyPool).items);
}

void PlaceBuffers(StepBuilder& b) {
  MeasureBuffers(b);
  StepPlan& plan = b.plan;
  const AllocatorKind kind = b.options.allocator;
  if (kind != AllocatorKind::kDynamic)
    for (const BufferId id : plan.buffer_ids()) plan.buffer(id).group = b.how[id].group;
  int64_t top = plan.persistent_bytes;
  for (const Stretch& stretch : StretchesOf(b, kind)) {
    if (kind == AllocatorKind::kDynamic && stretch.kind == kind)
      for (size_t k = 0; k < stretch.pool.items.size(); ++k)
        plan.buffer(stretch.pool.buffers[k].front()).live = stretch.pool.items[k].intervals;
    const int64_t bytes = Place(b, stretch.pool, {stretch.kind, stretch.slots}, top);
    if (stretch.tag == PoolTag::kParam) plan.param_pool_bytes = bytes;
    if (stretch.tag == PoolTag::kGrad) plan.grad_pool_bytes = bytes;
    top += bytes;
  }
  plan.arena_bytes = Aligned(top);
  SumPeaks(plan);
}

}  // namespace millrace
