// Which plan ranks run next that have an expert's rows together (parallel.expert): what they
// exchange has the sizes of a plan, so all of them run the same one at the same time, each with
// rows of its own or with none.
//
// Turns    Before each plan all ranks say what they want to run, and all run the largest of it:
//          prefills go before decodes, of either the one with most rows. Who wants another kind
//          runs this one without rows, and asks again. Who has nothing left asks for nothing, until
//          nobody asks for anything.
#pragma once

#include <compare>
#include <cstdint>

#include "comm/communicator.h"

namespace millrace {

struct Turn {
  enum class Kind { kNothing, kDecode, kPrefill };
  Kind kind = Kind::kNothing;
  int64_t rows = 0;  // of the plan
  auto operator<=>(const Turn&) const = default;
};

// The largest that any of `ranks` asks for. Collective.
Turn NextTurn(Communicator& ranks, const Turn& own);

}  // namespace millrace
