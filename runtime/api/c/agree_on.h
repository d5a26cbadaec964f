// What each rank of a run checks by itself before a collective call: all go on, or none does.
#pragma once

#include <functional>
#include <string>

#include "comm/communicator.h"

namespace millrace {

// `check` runs on every rank of `ranks`; on one that it fails on, whatever it throws leaves again.
// The others throw what the lowest such rank has to say: CallError or Error of the same code,
// kInternal for what is neither. Where nothing fails, `call` is the same on all ranks, or all throw
// CallError MR_INVALID_ARGUMENT with both: which function, with what has to be the same of its
// arguments. `talk` runs the exchange between ranks, whose own errors pass.
void AgreeOn(Communicator& ranks, const std::string& call, const std::function<void()>& check,
             const std::function<void(const std::function<void()>&)>& talk);

}  // namespace millrace
