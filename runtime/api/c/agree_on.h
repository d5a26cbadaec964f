// What each rank of a run checks by itself before a collective call: all go on, or none does.
#pragma once

#include <functional>

#include "comm/communicator.h"

namespace millrace {

// `check` runs on every rank of `ranks`; on one that it fails on, whatever it throws leaves again.
// The others throw what the lowest such rank has to say: CallError MR_INVALID_ARGUMENT for the
// mistake of a caller, else Error of the same code, kInternal for what is no Error. `talk` runs the
// exchange between ranks, whose own errors pass.
void AgreeOn(Communicator& ranks, const std::function<void()>& check,
             const std::function<void(const std::function<void()>&)>& talk);

}  // namespace millrace
