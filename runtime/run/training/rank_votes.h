// What the ranks of a run tell each other once a step.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/run/session.h"

namespace millrace {

struct RankVotes {
  bool stop = false;             // any rank was asked to
  std::string saves;             // Saver::Vote of each rank
  std::string order_difference;  // "after step 3: rank 1 has issued ..."; "" none, or not compared
};

// Collective: whether this rank was asked to stop, how its part of a save is doing, whether it has
// warnings (which meet), and, with `compare_order`, what collectives it has issued until after step
// `done`.
RankVotes MeetRanks(Session& session, int64_t done, bool stop, char save, bool compare_order);

}  // namespace millrace
