// What verbs that put a trained state to work share.
#pragma once

#include <string>

#include "runtime/run/training/training.h"
#include "tools/cli/command.h"

namespace millrace {

// The weights of a checkpoint, or of the newest sound one of run.dir; says which.
ResumedRun LoadWeights(RankContext& context, Session& session, const std::string& checkpoint);
// The same of another run's folder.
ResumedRun LoadWeights(RankContext& context, Session& session, const std::string& run_dir,
                       const std::string& checkpoint);

}  // namespace millrace
