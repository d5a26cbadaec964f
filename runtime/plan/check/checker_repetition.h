// Which entries of a schedule do, by their text, what earlier ones did. Internal to the checker.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/plan/step_plan.h"

namespace millrace {

// Entries [begin, end), in periods of `period` entries. Each entry from the second period on is the
// one a period before it, one microbatch later: the same body, the next microbatch, and from the
// third period on the same waits, each for the op a period later, or for the very same op if that
// one comes before `begin`. (The first period waits for what came before, the second for the
// first.) Such a wait reaches no further back than the period before; so it is with the waits of
// the entries behind the repetition for ops inside it.
struct ProvenRepetition {
  size_t begin = 0, end = 0, period = 1;

  // Does a period end before entry `e`, with others of the repetition to follow?
  bool EndsPeriod(size_t e) const { return begin < e && e < end && (e - begin) % period == 0; }
};

// The longest, begin == end where nothing repeats. What a schedule has in it that does not fit, a
// wait too many or a microbatch out of turn, is in no repetition.
ProvenRepetition FindRepetition(const std::vector<Entry>& schedule);

}  // namespace millrace
