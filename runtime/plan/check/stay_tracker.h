// How long buffers keep their contents, as the checker and the shadow memory walk a schedule.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/id_vector.h"
#include "runtime/plan/check/access_table.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// The live range that holds the position; end: none. They are ascending and disjoint.
std::vector<Interval>::const_iterator LiveRangeAt(const PlanBuffer& buffer, int64_t position);

using StayId = Id<struct StayTag>;
using EnteredId = Id<struct EnteredTag>;  // an entry, as they are walked

// Numbers the stays of buffers while bodies are walked in schedule order. A stay is a time during
// which a buffer keeps its contents: one live range, or several that meet where one body follows
// another (live at the end of the one and at the beginning of the other).
class StayTracker {
 public:
  explicit StayTracker(const StepPlan& plan);

  void Enter(const Body& body) { entered_.push_back(&body); }
  // The stay that an access of the entered body belongs to. A state has one,
  // numbered as its buffer.
  StayId StayOf(const CellAccess& access);
  // The buffer's latest stay, of all entries so far; none: absent.
  StayId Latest(BufferId buffer) const;
  // Does the buffer's latest stay outlast the body entered last?
  bool Continues(BufferId buffer) const;
  // Stays so far are those before; so are entries.
  StayId next() const { return next_; }
  EnteredId entered() const { return entered_.ids().last; }

  // Is this tracker what `before` was, with stays from `stay` on moved on by as many as have been
  // numbered since, and entries from `entry` on by as many as have been entered? Then the same
  // bodies number their stays alike again.
  bool IsShifted(const StayTracker& before, StayId stay, EnteredId entry) const;

 private:
  struct Last {
    EnteredId entry;
    int32_t interval = -1;
    StayId stay;
    bool operator==(const Last&) const = default;
  };
  bool LiveThroughEnd(BufferId buffer, const Last& last) const;
  bool LiveAllThrough(BufferId buffer, const IdRange<EnteredId>& entries) const;

  const StepPlan* plan_;
  IdVector<EnteredId, const Body*> entered_;
  IdVector<BufferId, Last> last_;
  StayId next_;
};

}  // namespace millrace
