// Lifetimes from uses, addresses from lifetimes. See step_plan.h for scopes
// and the canonical timeline.
#include <algorithm>
#include <map>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/plan/schedule/step_builder.h"

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

std::vector<Positions> CollectAccesses(const StepPlan& plan) {
  std::vector<Positions> accesses(plan.buffers.size());
  for (const Body& body : plan.bodies) {
    int64_t position = body.begin;
    for (const PlanOp& op : body.ops) {
      ForEachUse(op.op, [&](const View& view, Access, std::string_view) {
        Positions& list = accesses[static_cast<size_t>(view.buffer.value)];
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

void Normalise(std::vector<Interval>* live) {
  std::sort(live->begin(), live->end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> merged;
  for (const Interval& i : *live) {
    if (!merged.empty() && i.begin <= merged.back().end)
      merged.back().end = std::max(merged.back().end, i.end);
    else
      merged.push_back(i);
  }
  *live = std::move(merged);
}

// What ops beside the compute stream read and write is kept until kOpsBeside later ops have been
// issued, so that the compute stream need not wait for its bytes at once.
constexpr int64_t kOpsBeside = 12;

void HoldOperandsBeside(StepPlan& plan) {
  std::vector<bool> held(plan.buffers.size());
  for (const Body& body : plan.bodies) {
    int64_t position = body.begin;
    for (const PlanOp& op : body.ops) {
      if (op.stream == StreamId::kReduce && !IsCollective(op.op))
        ForEachUse(op.op, [&](const View& view, Access, std::string_view) {
          PlanBuffer& buffer = plan.buffers[static_cast<size_t>(view.buffer.value)];
          // A bucket has its copies, and its own rule.
          if (buffer.cls != BufferClass::kActivations && buffer.cls != BufferClass::kWorkspaces)
            return;
          buffer.live.push_back({position, std::min(position + kOpsBeside, body.end())});
          held[static_cast<size_t>(view.buffer.value)] = true;
        });
      ++position;
    }
  }
  for (size_t i = 0; i < held.size(); ++i)
    if (held[i]) Normalise(&plan.buffers[i].live);
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
      std::vector<Interval>& live = plan.buffers[static_cast<size_t>(id.value)].live;
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
  const std::vector<Positions> accesses = CollectAccesses(plan);
  const int64_t end = plan.timeline_end();
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    PlanBuffer& buffer = plan.buffers[i];
    if (buffer.scope == BufferScope::kPersistent ||
        (buffer.scope == BufferScope::kEra && !accesses[i].empty())) {
      buffer.live = {{0, end}};
      continue;
    }
    if (accesses[i].empty()) continue;
    switch (buffer.scope) {
      case BufferScope::kStep:
        AddSpan(accesses[i], 0, end, &buffer.live);
        break;
      case BufferScope::kMicrobatch:
        if (buffer.cls ==
            BufferClass::kWorkspaces) {  // nothing survives between two uses of a workspace
          for (int64_t position : accesses[i]) buffer.live.push_back({position, position + 1});
        } else {
          for (const Region& region : regions)
            AddSpan(accesses[i], region.begin, region.end, &buffer.live);
        }
        break;
      case BufferScope::kCarried: {
        Positions produced;
        for (const auto& [body, op] : b.produced[i])
          produced.push_back(plan.bodies[static_cast<size_t>(body)].begin + op);
        if (produced.empty())
          buffer.live = {{accesses[i].front(), end}};  // read by the host when the plan has run
        else
          buffer.live = CarriedLife(accesses[i], produced, regions, b.how[i].whole_step);
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

// Items of one PlanPool call, and the buffers each stands for.
struct PoolItems {
  std::vector<Item> items;
  std::vector<std::vector<size_t>> buffers;
};

PoolItems Gather(const StepBuilder& b, bool per_stay, auto&& wanted) {
  PoolItems pool;
  std::map<int32_t, size_t> groups;
  for (size_t i = 0; i < b.plan.buffers.size(); ++i) {
    const PlanBuffer& buffer = b.plan.buffers[i];
    if (IsState(buffer.scope) || buffer.live.empty() || !wanted(b.how[i].pool)) continue;
    const int32_t group = per_stay ? -1 : b.how[i].group;
    if (group >= 0) {
      const auto [it, fresh] = groups.try_emplace(group, pool.items.size());
      if (!fresh) {
        Item& item = pool.items[it->second];
        item.intervals.insert(item.intervals.end(), buffer.live.begin(), buffer.live.end());
        Normalise(&item.intervals);
        pool.buffers[it->second].push_back(i);
        continue;
      }
    }
    pool.items.push_back(
        {buffer.name, buffer.bytes, buffer.live, b.how[i].unit.value, b.how[i].dtype});
    pool.buffers.push_back({i});
  }
  return pool;
}

int64_t Place(StepBuilder& b, const PoolItems& pool, const PoolOptions& options, int64_t base) {
  if (pool.items.empty()) return 0;
  const Placement placement = PlanPool(pool.items, options);
  VerifyPlacement(pool.items, placement);
  for (size_t k = 0; k < pool.items.size(); ++k) {
    for (size_t i : pool.buffers[k]) {
      std::vector<int64_t>& offsets = b.plan.buffers[i].offsets;
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
  for (size_t i = 0; i < b.states.tensors.size(); ++i) {
    PlanBuffer& buffer = plan.buffers[i];
    if (buffer.live.empty()) continue;  // of an era that this plan does not use
    buffer.offsets = {b.states.tensors[i].offset};
    if (buffer.scope == BufferScope::kEra)
      plan.persistent_bytes = b.states.run_bytes + b.states.era_bytes;
  }
  plan.lower_bound =
      plan.persistent_bytes + LowerBound(Gather(b, false, [](PoolTag) { return true; }).items);
}

void PlaceBuffers(StepBuilder& b) {
  MeasureBuffers(b);
  StepPlan& plan = b.plan;
  int64_t top = plan.persistent_bytes;
  const AllocatorKind kind = b.options.allocator;
  if (kind != AllocatorKind::kDynamic)
    for (size_t i = 0; i < plan.buffers.size(); ++i) plan.buffers[i].group = b.how[i].group;
  if (kind == AllocatorKind::kPacked) {
    top += Place(b, Gather(b, false, [](PoolTag) { return true; }), {kind, b.options.slots}, top);
  } else {
    const bool per_stay = kind == AllocatorKind::kDynamic;
    PoolItems params = Gather(b, per_stay, [](PoolTag tag) { return tag == PoolTag::kParam; });
    if (per_stay) {
      // What is carried over a seam must be found where it was left: such a stay
      // keeps one address of its own.
      for (size_t k = 0; k < params.items.size(); ++k)
        if (plan.buffers[params.buffers[k].front()].scope == BufferScope::kCarried) {
          params.items[k].intervals = {{0, plan.timeline_end()}};
          plan.buffers[params.buffers[k].front()].live = params.items[k].intervals;
        }
    }
    plan.param_pool_bytes = Place(b, params, {kind, b.options.slots}, top);
    top += plan.param_pool_bytes;
    plan.grad_pool_bytes =
        Place(b, Gather(b, per_stay, [](PoolTag tag) { return tag == PoolTag::kGrad; }),
              {kind, b.options.reduce_depth + 1}, top);
    top += plan.grad_pool_bytes;
    top += Place(b, Gather(b, false, [](PoolTag tag) { return tag == PoolTag::kNone; }),
                 {AllocatorKind::kPacked, 0}, top);
  }
  plan.arena_bytes = Aligned(top);
  SumPeaks(plan);
}

}  // namespace millrace
