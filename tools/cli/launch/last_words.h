// What a launcher shows of ranks' logs when their own words have not come.
#pragma once

#include <string>

#include "tools/cli/terminal/program_log.h"
#include "tools/launch/job_end.h"

namespace millrace {

// Shows, in `log`'s name, the last lines of a rank that a signal ended; of a job whose error mpirun
// has not passed on, those before the first error in any rank's log, and that error, as the rank
// would have (without one, that there is none). `logs`: LogFolder, "" where nobody knows it. Only
// starts since `began` (TimeNowUtc) count, of which the newest of each log must be one.
void ShowLastWords(const Verdict& verdict, const std::string& logs, const std::string& began,
                   ProgramLog& log);

}  // namespace millrace
