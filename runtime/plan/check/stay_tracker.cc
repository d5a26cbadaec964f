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
    : plan_(&plan), last_(plan.buffers.size()), next_(static_cast<int32_t>(plan.buffers.size())) {}

void StayTracker::Enter(int body) { entered_.push_back(body); }

bool StayTracker::LiveThroughEnd(int32_t buffer, const Last& last) const {
  const Body& body = plan_->bodies[static_cast<size_t>(entered_[static_cast<size_t>(last.entry)])];
  return plan_->buffers[static_cast<size_t>(buffer)].live[static_cast<size_t>(last.interval)].end >=
         body.end();
}

bool StayTracker::LiveAllThrough(int32_t buffer, int body_index) const {
  const Body& body = plan_->bodies[static_cast<size_t>(body_index)];
  if (body.ops.empty()) return true;
  const PlanBuffer& of = plan_->buffers[static_cast<size_t>(buffer)];
  const auto live = LiveRangeAt(of, body.begin);
  return live != of.live.end() && body.end() <= live->end;
}

bool StayTracker::Continues(int32_t buffer) const {
  const Last& last = last_[static_cast<size_t>(buffer)];
  if (IsState(plan_->buffers[static_cast<size_t>(buffer)].scope)) return true;
  if (last.entry < 0 || !LiveThroughEnd(buffer, last)) return false;
  for (size_t e = static_cast<size_t>(last.entry) + 1; e < entered_.size(); ++e)
    if (!LiveAllThrough(buffer, entered_[e])) return false;
  return true;
}

int32_t StayTracker::Latest(int32_t buffer) const {
  if (IsState(plan_->buffers[static_cast<size_t>(buffer)].scope)) return buffer;
  return last_[static_cast<size_t>(buffer)].stay;
}

bool StayTracker::IsShifted(const StayTracker& before, int32_t stay, int32_t entry) const {
  const int32_t stays = count() - before.count(), entries = entered() - before.entered();
  return std::equal(before.last_.begin(), before.last_.end(), last_.begin(),
                    [&](Last was, const Last& is) {
                      if (was.stay >= stay) was.stay += stays;
                      if (was.entry >= entry) was.entry += entries;
                      return was == is;
                    });
}

int32_t StayTracker::StayOf(const CellAccess& access) {
  const PlanBuffer& buffer = plan_->buffers[static_cast<size_t>(access.buffer)];
  if (IsState(buffer.scope)) return access.buffer;
  Last& last = last_[static_cast<size_t>(access.buffer)];
  const auto now = static_cast<int32_t>(entered_.size()) - 1;
  bool same = last.entry == now && last.interval == access.interval;
  if (!same && last.entry >= 0 && last.entry != now) {
    // Live at the end of the body it was last seen in, in every body between, and at
    // the beginning of this one.
    same = LiveThroughEnd(access.buffer, last);
    for (int32_t e = last.entry + 1; same && e < now; ++e)
      same = LiveAllThrough(access.buffer, entered_[static_cast<size_t>(e)]);
    const int64_t begin = plan_->bodies[static_cast<size_t>(entered_.back())].begin;
    same = same && buffer.live[static_cast<size_t>(access.interval)].begin <= begin;
  }
  if (!same) last.stay = next_++;
  last.entry = now;
  last.interval = access.interval;
  return last.stay;
}

}  // namespace millrace
