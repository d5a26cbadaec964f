// The sections of a run's report about its calls: what they were given, how they ended, and the
// checkpoints that they left.
#pragma once

#include <string>

#include "runtime/record/report/run_record.h"

namespace millrace {

std::string CallsSection(const RunRecord& record);
std::string ConfigurationSection(const RunRecord& record);
std::string HashesSection(const RunRecord& record);
std::string EnvironmentSection(const RunRecord& record);

}  // namespace millrace
