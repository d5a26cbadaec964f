// How long buffers keep their contents, as the checker and the shadow memory walk a schedule.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/check/access_table.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// The live range that holds the position; end: none. They are ascending and disjoint.
std::vector<Interval>::const_iterator LiveRangeAt(const PlanBuffer& buffer, int64_t position);

// Numbers the stays of buffers while bodies are walked in schedule order. A stay is a time during
// which a buffer keeps its contents: one live range, or several that meet where one body follows
// another (live at the end of the one and at the beginning of the other).
class StayTracker {
 public:
  explicit StayTracker(const StepPlan& plan);

  void Enter(int body);
  // The stay that an access of the entered body belongs to. A state has one,
  // numbered as its buffer.
  int32_t StayOf(const CellAccess& access);
  // The buffer's latest stay, of all entries so far; -1: none.
  int32_t Latest(int32_t buffer) const;
  // Does the buffer's latest stay outlast the body entered last?
  bool Continues(int32_t buffer) const;
  int32_t count() const { return next_; }
  int32_t entered() const { return static_cast<int32_t>(entered_.size()); }

  // Is this tracker what `before` was, with stays from `stay` on moved on by as many as have been
  // numbered since, and entries from `entry` on by as many as have been entered? Then the same
  // bodies number their stays alike again.
  bool IsShifted(const StayTracker& before, int32_t stay, int32_t entry) const;

 private:
  struct Last {
    int32_t entry = -1, interval = -1, stay = -1;
    bool operator==(const Last&) const = default;
  };
  bool LiveThroughEnd(int32_t buffer, const Last& last) const;
  bool LiveAllThrough(int32_t buffer, int body) const;

  const StepPlan* plan_;
  std::vector<int32_t> entered_;  // bodies, in order
  std::vector<Last> last_;        // by buffer
  int32_t next_;
};

}  // namespace millrace
