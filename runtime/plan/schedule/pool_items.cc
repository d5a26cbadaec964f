#include "runtime/plan/schedule/pool_items.h"

#include <algorithm>
#include <map>
#include <utility>

namespace millrace {
namespace {

// A stay of its own address that is carried over a seam must be found where it was left: it keeps
// its bytes throughout.
void WidenCarried(const StepBuilder& b, PoolItems& pool) {
  for (size_t k = 0; k < pool.items.size(); ++k)
    if (b.plan.buffer(pool.buffers[k].front()).scope == BufferScope::kCarried)
      pool.items[k].intervals = {{0, b.plan.timeline_end()}};
}

}  // namespace

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

PoolItems ItemsOf(const StepBuilder& b, std::initializer_list<PoolTag> tags, bool per_stay) {
  PoolItems pool;
  std::map<int32_t, size_t> groups;
  for (const BufferId id : b.how.ids()) {
    const PlanBuffer& buffer = b.plan.buffer(id);
    const BufferPlan& how = b.how[id];
    if (IsState(buffer.scope) || buffer.live.empty() ||
        std::find(tags.begin(), tags.end(), how.pool) == tags.end())
      continue;
    const int32_t group = per_stay ? -1 : how.group;
    if (group >= 0) {
      const auto [it, fresh] = groups.try_emplace(group, pool.items.size());
      if (!fresh) {
        Item& item = pool.items[it->second];
        item.intervals.insert(item.intervals.end(), buffer.live.begin(), buffer.live.end());
        Normalise(&item.intervals);
        pool.buffers[it->second].push_back(id);
        continue;
      }
    }
    pool.items.push_back({buffer.name, buffer.bytes, buffer.live, how.unit.value, how.dtype});
    pool.buffers.push_back({id});
  }
  return pool;
}

std::vector<Stretch> StretchesOf(const StepBuilder& b, AllocatorKind kind) {
  if (kind == AllocatorKind::kPacked)
    return {{ItemsOf(b, kAnyPool), kind, b.options.slots, PoolTag::kNone}};
  const bool per_stay = kind == AllocatorKind::kDynamic;
  PoolItems params = ItemsOf(b, {PoolTag::kParam}, per_stay);
  if (per_stay) WidenCarried(b, params);
  return {
      {std::move(params), kind, b.options.slots, PoolTag::kParam},
      {ItemsOf(b, {PoolTag::kGrad}, per_stay), kind, b.options.reduce_depth + 1, PoolTag::kGrad},
      {ItemsOf(b, {PoolTag::kNone}), AllocatorKind::kPacked, 0, PoolTag::kNone}};
}

}  // namespace millrace
