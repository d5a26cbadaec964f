#include "runtime/plan/gather_schedule.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace millrace {
namespace {

// Forward and backward stay of each flat; one segment where policy or
// turn-around keeps it in between.
std::vector<GatherSegment> CutSegments(const std::vector<FlatUse>& uses,
                                       const GatherOptions& options) {
  std::vector<int> last_forward_reads;  // of blocks that are given back after their forward
  for (const FlatUse& use : uses)
    if (use.block && use.reshard == Reshard::kAfterForward && !use.reads.empty() &&
        use.reads.front() < options.forward_ops)
      last_forward_reads.push_back(
          *(std::lower_bound(use.reads.begin(), use.reads.end(), options.forward_ops) - 1));
  std::sort(last_forward_reads.rbegin(), last_forward_reads.rend());
  const size_t kept =
      std::min<size_t>(last_forward_reads.size(), static_cast<size_t>(options.slots));
  const int kept_from = kept == 0 ? options.ops : last_forward_reads[kept - 1];

  std::vector<GatherSegment> segments;
  for (const FlatUse& use : uses) {
    if (use.reads.empty()) continue;
    const bool slot = use.block && use.reshard == Reshard::kAfterForward;
    GatherSegment whole{use.flat, slot, use.reshard == Reshard::kNever, use.reads.front(),
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

}  // namespace

std::vector<GatherSegment> PlanGathers(const std::vector<FlatUse>& uses,
                                       const GatherOptions& options) {
  MR_CHECK_GE(options.slots, options.prefetch + 1,
              "memory.slots must be at least memory.prefetch + 1");
  std::vector<GatherSegment> segments = CutSegments(uses, options);
  const int count = static_cast<int>(segments.size());
  const int prefetch = std::min(options.prefetch, count);

  // Earliest position >= wanted at which the flat's previous stay has ended and a slot is free.
  const auto earliest = [&](const GatherSegment& segment, int wanted, auto live_before) {
    for (int position = wanted; position < options.ops; ++position) {
      int live = 0;
      bool same_flat_live = false;
      for (const GatherSegment& other : segments) {
        if (!live_before(other, position)) continue;
        live += other.slot;
        same_flat_live |= other.flat == segment.flat;
      }
      if (!same_flat_live && (!segment.slot || live < options.slots)) return position;
    }
    return options.ops;
  };

  for (int k = 0; k < count; ++k) {
    GatherSegment& segment = segments[static_cast<size_t>(k)];
    if (k < prefetch) {
      segment.carried = options.carry;
      segment.issue = 0;
      continue;
    }
    const int wanted = segments[static_cast<size_t>(k - prefetch)].first;
    segment.issue = earliest(segment, wanted, [&](const GatherSegment& other, int position) {
      return &other < &segment &&
             other.last >= position;  // earlier segments were issued no later than this one
    });
    segment.issue = std::min(segment.issue, segment.first);
  }
  for (int k = 0; k < prefetch && options.carry; ++k) {
    GatherSegment& segment = segments[static_cast<size_t>(k)];
    const int wanted = segments[static_cast<size_t>(count - prefetch + k)].first;
    segment.carry_issue = earliest(segment, wanted, [&](const GatherSegment& other, int position) {
      return other.last >= position;
    });
  }
  return segments;
}

}  // namespace millrace
