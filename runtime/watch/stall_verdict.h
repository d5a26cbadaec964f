// Who holds a job up, and where, in words: from what every rank shows on the board. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/step_plan.h"
#include "runtime/watch/progress_board.h"

namespace millrace {

// What op numbers and units are called; outlives what holds it.
struct PlanNames {
  std::vector<const StepPlan*> plans;  // the engine's list
  std::vector<std::string> units;      // by UnitId
};

struct RankView {
  enum class State {
    kAlive,
    kSilent,  // its record is no longer renewed: stopped, swapped out, or its host hangs
    kGone     // ended in good order
  };
  State state = State::kAlive;
  ProgressRecord record;
  char process = '?';  // ProcessState(record), where silent
};

// Where a rank is. Of two ranks that have not done the same, the smaller (run, place) is behind.
struct Position {
  uint64_t run = 0;
  int64_t place = 0;
  bool waits = false;  // in a collective: for its peers
  std::string text;    // "all_gather of unit h.1 (op ...)"
};
Position PositionOf(const ProgressReading& reading, const PlanNames& names);

// What a rank's transport says of itself.
struct BrokenTransport {
  int rank = 0;
  std::string words;  // "" where it is sound
};

// A few sentences for all ranks; names the silent ones, else those that are furthest behind.
std::string StallVerdict(const std::vector<RankView>& ranks, const PlanNames& names,
                         int64_t seconds, const BrokenTransport& broken = {});

}  // namespace millrace
