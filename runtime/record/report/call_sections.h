// The sections of a run's report about what its calls were given: configuration,
// plan stages, environment.
#pragma once

#include <string>

#include "runtime/record/report/run_record.h"

namespace millrace {

std::string ConfigurationSection(const RunRecord& record);
std::string HashesSection(const RunRecord& record);
std::string EnvironmentSection(const RunRecord& record);

}  // namespace millrace
