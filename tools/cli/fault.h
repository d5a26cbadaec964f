// Faults on request, for tests of what a run does about them.
#pragma once

#include <string>
#include <vector>

#include "runtime/api/training.h"

namespace millrace {

inline constexpr const char* kFaultVariable = "MILLRACE_INJECT";

// "STEP:RANK:loss", "STEP:RANK:unit=NAME" or "STEP:RANK:skip=NAME", several separated by commas; STEP counts
// from 1. Whether there is such a rank and unit is for Train to say. Error(kConfig) naming the variable and
// the text.
std::vector<TrainFault> ParseFaults(const std::string& text);

// Those of the environment; none when the variable is not set.
std::vector<TrainFault> FaultsFromEnvironment();

}  // namespace millrace
