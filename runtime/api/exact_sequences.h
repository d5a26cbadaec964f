// Whether what is generated here can have the bits of what is trained and scored here.
#pragma once

#include <string>

#include "runtime/config/config.h"
#include "runtime/plan/state_layout.h"

namespace millrace {

// For a run that trains or scores beside generating. Decode forms a row as the training forward
// forms the first sequence of a microbatch, since it cannot know where the sequence will lie there:
// that is the bits of any only where this process's BLAS forms all sequences alike. Where it does
// not, Error(kConfig) if inference.exact is true; if it is null, that as a text for the log: names
// the key, the BLAS's processor and what is allowed. "": alike, or inference.exact is false.
std::string CheckSequencesAlike(const Config& config, const RunPlans& plans);

}  // namespace millrace
