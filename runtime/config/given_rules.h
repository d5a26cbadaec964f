// Rules between the keys of a configuration, said in terms of what its authors gave.
#pragma once

#include <cstddef>

#include "runtime/config/given_values.h"
#include "runtime/config/load.h"

namespace millrace {

// A nullable section that is there must have all of its keys: those that are missing become
// problems, and failed.
void RequireWholeSections(GivenValues& given, size_t source, ProblemList& problems);

// What Validate (config.h) and FindIdleKeys (idle_keys.h) find becomes a problem, or a note of
// `loaded` where a later author made a key idle. Nothing where a file could not be read: what it
// said would have counted.
void CheckRules(const GivenValues& given, const ConfigContext& context, size_t source,
                LoadedConfig& loaded, ProblemList& problems);

}  // namespace millrace
