// summary.json of a run that is complete and has none: it was killed between its last checkpoint
// and the summary, or somebody has deleted the file.
//
// From     the checkpoint (hashes of the state, counters), the plan of this call, and metrics.jsonl
//          (losses, median step time, peak memory), over all steps of the run.
// Absent   null in the file, since only the process that trained knew it: eval_before, seconds,
//          resident_before_arena_bytes, saves. `rebuilt_from` names the checkpoint.
// Damage   Lines of metrics.jsonl that cannot be read are left out, as they are in the file:
//          `unreadable_lines` has their numbers. Losses that they held are null.
#pragma once

#include <string>

#include "runtime/plan/cost/machine.h"
#include "runtime/run/checkpoint/run_checkpoint.h"
#include "runtime/run/session.h"

namespace millrace {

// A collective: `resumed` has just been loaded into the session's engine, by a call that finds no
// step left to train. Writes the file where there is none, and returns, on rank 0, what is worth
// saying ("": nothing). Where the run's last call had another plan or world, the file would
// describe what never ran: nothing is written, and what is returned says so.
// Errors: kIo, and the engine's.
std::string WriteMissingSummary(Session& session, const Machine& machine,
                                const ResumedRun& resumed);

}  // namespace millrace
