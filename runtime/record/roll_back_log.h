// run.dir/roll_backs.jsonl: a line for each roll-back, written before training goes on from its
// checkpoint. Checkpoints hold the roll-backs that were made before them; the file has those made
// since, so that a run that is killed after one does not meet the same data again.
//
//   {"from": 27, "to": 20, "why": "loss above 3.21", "roll_backs": 1, "state": {...}}
//
// state is Guard::State() after it. Written and read by rank 0. Errors: kIo;
// kCheckpoint: a line is damaged.
#pragma once

#include <string>
#include <vector>

#include "runtime/record/step_report.h"

namespace millrace {

inline constexpr const char* kRollBackLogName = "roll_backs.jsonl";

// The last of the run's roll-backs was made just now; `state` is the guard's after it.
void LogRollBack(const std::string& run_dir, const std::vector<RollBack>& roll_backs,
                 const std::string& state);

// The state with which a run goes on from the checkpoint of `step` whose own state is `state`: that
// of the newest roll-back to it, if it was made after it was saved. A last line without a newline
// was never made. Lines of roll-backs that are now still to come are dropped.
std::string StateAfterRollBacks(const std::string& run_dir, int64_t step, const std::string& state);

}  // namespace millrace
