#include "runtime/plan/schedule/gather_schedule.h"

#include <algorithm>
#include <map>
#include <set>

#include "runtime/base/error.h"

namespace millrace {
namespace {

// Forward and backward stay of each unit; one segment where policy or
// turn-around keeps it in between.
std::vector<GatherSegment> CutSegments(const std::vector<UnitUse>& uses,
                                       const GatherOptions& options) {
  std::vector<int> last_forward_reads;  // of blocks that are given back after their forward
  for (const UnitUse& use : uses)
    if (use.block && use.reshard == Reshard::kAfterForward && !use.reads.empty() &&
        use.reads.front() < options.forward_ops)
      last_forward_reads.push_back(
          *(std::lower_bound(use.reads.begin(), use.reads.end(), options.forward_ops) - 1));
  std::sort(last_forward_reads.rbegin(), last_forward_reads.rend());
  const size_t kept =
      std::min<size_t>(last_forward_reads.size(), static_cast<size_t>(options.slots));
  const int kept_from = kept == 0 ? options.ops : last_forward_reads[kept - 1];

  std::vector<GatherSegment> segments;
  for (const UnitUse& use : uses) {
    if (use.reads.empty()) continue;
    const bool slot = use.block && use.reshard == Reshard::kAfterForward;
    GatherSegment whole{use.unit, slot, use.reshard == Reshard::kNever, use.reads.front(),
                        use.reads.back()};
    const auto backward = std::lower_bound(use.reads.begin(), use.reads.end(), options.forward_ops);
    const bool split = slot && backward != use.reads.begin() && backward != use.reads.end() &&
                       *(backward - 1) < kept_from;
    if (!split) {
      segments.push_back(whole);
      continue;
    }
    GatherSegment forward = whole, again = whole;
    forward.last = *(backward - 1);
    again.first = *backward;
    segments.push_back(forward);
    segments.push_back(again);
  }
  std::stable_sort(segments.begin(), segments.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return segments;
}

// Where the segments added so far end: from which position on a unit's stay is over, and a slot is
// free.
class Ends {
 public:
  explicit Ends(int slots) : slots_(static_cast<size_t>(slots)) {}

  void Add(const GatherSegment& segment) {
    const auto [it, fresh] = last_of_unit_.try_emplace(segment.unit, segment.last);
    if (!fresh) it->second = std::max(it->second, segment.last);
    if (!segment.slot) return;
    latest_.insert(segment.last);
    if (latest_.size() > slots_) latest_.erase(latest_.begin());
  }

  // The first position at which the unit's stays have ended and fewer than all slots are taken.
  int FreeFor(const GatherSegment& segment) const {
    const auto it = last_of_unit_.find(segment.unit);
    const int stay = it == last_of_unit_.end() ? 0 : it->second + 1;
    const bool full = segment.slot && latest_.size() == slots_;
    return std::max(stay, full ? *latest_.begin() + 1 : 0);
  }

 private:
  const size_t slots_;
  std::map<UnitId, int> last_of_unit_;
  std::multiset<int> latest_;  // of the slot segments, the `slots` last ends
};

}  // namespace

std::vector<GatherSegment> PlanGathers(const std::vector<UnitUse>& uses,
                                       const GatherOptions& options) {
  MR_CHECK_GE(options.slots, options.prefetch + 1,
              "memory.slots must be at least memory.prefetch + 1");
  std::vector<GatherSegment> segments = CutSegments(uses, options);
  const int count = static_cast<int>(segments.size());
  const int prefetch = std::min(options.prefetch, count);

  Ends ends(options.slots);  // of the segments before the present one
  for (int k = 0; k < count; ++k) {
    GatherSegment& segment = segments[static_cast<size_t>(k)];
    if (k < prefetch) {
      segment.carried = options.carry;
      segment.issue = 0;
    } else {
      // Earlier segments were issued no later than this one.
      const int wanted = segments[static_cast<size_t>(k - prefetch)].first;
      segment.issue =
          std::min({std::max(wanted, ends.FreeFor(segment)), segment.first, options.ops});
    }
    ends.Add(segment);
  }
  for (int k = 0; k < prefetch && options.carry; ++k) {
    GatherSegment& segment = segments[static_cast<size_t>(k)];
    const int wanted = segments[static_cast<size_t>(count - prefetch + k)].first;
    segment.carry_issue = std::min(std::max(wanted, ends.FreeFor(segment)), options.ops);
  }
  return segments;
}

}  // namespace millrace
