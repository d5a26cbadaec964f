#include "runtime/plan/check/stay_tracker.h"

#include <algorithm>
#include <iterator>

namespace millrace {

std::vector<Interval>::const_iterator LiveRangeAt(const PlanBuffer& buffer, int64_t position) {
  const auto after =
      std::upper_bound(buffer.live.begin(), buffer.live.end(), position,
                       [](int64_t at, const Interval& live) { return at < live.begin; });
  if (after == buffer.live.begin() || std::prev(after)->end <= position) return buffer.live.end();
  return std::prev(after);
}

StayTracker::StayTracker(const StepPlan& plan)
    : plan_(&plan), last_(plan.buffers.size()), next_{plan.buffer_ids().last.value} {}

bool StayTracker::LiveThroughEnd(BufferId buffer, const Last& last) const {
  const std::vector<Interval>& live = plan_->buffer(buffer).live;
  return live[static_cast<size_t>(last.interval)].end >= entered_[last.entry]->end();
}

bool StayTracker::LiveAllThrough(BufferId buffer, const IdRange<EnteredId>& entries) const {
  const PlanBuffer& of = plan_->buffer(buffer);
  for (const EnteredId entry : entries) {
    const Body& body = *entered_[entry];
    if (body.ops.empty()) continue;
    const auto live = LiveRangeAt(of, body.begin);
    if (live == of.live.end() || body.end() > live->end) return false;
  }
  return true;
}

bool StayTracker::Continues(BufferId buffer) const {
  if (IsState(plan_->buffer(buffer).scope)) return true;
  const Last& last = last_[buffer];
  return last.entry && LiveThroughEnd(buffer, last) &&
         LiveAllThrough(buffer, {{last.entry.value + 1}, entered()});
}

StayId StayTracker::Latest(BufferId buffer) const {
  if (IsState(plan_->buffer(buffer).scope)) return {buffer.value};
  return last_[buffer].stay;
}

bool StayTracker::IsShifted(const StayTracker& before, StayId stay, EnteredId entry) const {
  const int32_t stays = next().value - before.next().value,
                entries = entered().value - before.entered().value;
  return std::equal(before.last_.begin(), before.last_.end(), last_.begin(),
                    [&](Last was, const Last& is) {
                      if (was.stay >= stay) was.stay.value += stays;
                      if (was.entry >= entry) was.entry.value += entries;
                      return was == is;
                    });
}

StayId StayTracker::StayOf(const CellAccess& access) {
  const PlanBuffer& buffer = plan_->buffer(access.buffer);
  if (IsState(buffer.scope)) return {access.buffer.value};
  Last& last = last_[access.buffer];
  const EnteredId now{entered().value - 1};
  bool same = last.entry == now && last.interval == access.interval;
  if (!same && last.entry && last.entry != now) {
    // Live at the end of the body it was last seen in, in every body between, and at
    // the beginning of this one.
    same = LiveThroughEnd(access.buffer, last) &&
           LiveAllThrough(access.buffer, {{last.entry.value + 1}, now}) &&
           buffer.live[static_cast<size_t>(access.interval)].begin <= entered_[now]->begin;
  }
  if (!same) last.stay = {next_.value++};
  last.entry = now;
  last.interval = access.interval;
  return last.stay;
}

}  // namespace millrace
