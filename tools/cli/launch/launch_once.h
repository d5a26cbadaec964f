// A verb as ranks under mpirun, or as one process, started once: `millrace -n N VERB ...`, which is
// what tools/millrace runs. How it ends becomes an exit code and a line: tools/README.md.
#pragma once

#include <string>
#include <vector>

#include "tools/launch/rank_command.h"

namespace millrace {

// Whether this verb trains or uses a model, and so can run as ranks.
bool RunsAsRanks(const std::string& verb);

// `command`: the verb and what follows it, of this same program. For more than one rank the
// configuration is checked first, by one process with MILLRACE_PREFLIGHT=1 and MILLRACE_WORLD=N in
// its environment, so that a wrong key is said once and before any rank starts. Errors: kConfig:
// under an mpirun already, or it cannot be started; kIo: no temporary folder.
int LaunchOnce(const RankOptions& options, const std::vector<std::string>& command);

}  // namespace millrace
