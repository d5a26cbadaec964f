// The section of a run's report about the loads of experts, by block.
#pragma once

#include <string>

#include "runtime/record/report/run_record.h"

namespace millrace {

// A map of all blocks' experts, over the lines that have loads; "" where none has.
std::string ExpertsSection(const RunRecord& record);

}  // namespace millrace
