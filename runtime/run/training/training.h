// The training loop: data in, steps, evaluation, metrics and checkpoints out. Who else wants to
// know of a step, or to disturb it, is an observer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/data/file_system.h"
#include "runtime/plan/cost/machine.h"
#include "runtime/record/step_figures.h"
#include "runtime/record/step_observer.h"
#include "runtime/run/checkpoint/run_checkpoint.h"
#include "runtime/run/session.h"

namespace millrace {

struct TrainOptions {
  Machine machine;  // what MFU and the predicted figures are for, as FindMachine gives it
  // Where each configuration key's value comes from, as LoadedConfig has it: recorded in
  // run.dir/config.json.
  std::map<std::string, std::string> origin = {};
  NewestFigures* figures = nullptr;  // rank 0's: each step's, when its line has been written
  FileSystem* files = nullptr;       // that checkpoints are written with; null: the machine's
  // Step (1-based) whose ops are timed, of all ranks, for run.dir/timeline.json (step_trace.h); 0:
  // none. On CUDA the two before it run with events between their ops, too; where the call begins
  // later than these, none. Not in checked execution.
  int64_t trace_step = 0;
  // Called on every rank once it is known that there are steps to train, before a file of the run
  // is written: a run that is complete stays as it is. Null: nothing.
  std::function<void()> on_begin = {};
};

// What checkpoints of a Session's run belong to. Data is described once it is open.
RunIdentity IdentityOf(const Session& session);

// Trains until train.steps or until `stop` is set on any rank; then every rank saves and returns.
// Each rank calls its observers (step_observer.h) in their order. Rank 0 writes
// run.dir/config.json, metrics.jsonl, summary.json, roll_backs.jsonl where there was one,
// timeline.json where a step is traced and, where run.tensorboard asks for them, event files.
// checkpoint.resume decides whether the newest valid checkpoint is continued.
// Errors: kCheckpoint, kConfig (another model in the same folder), kData, kIo, kNonFinite (a guard
// stops the run; rank 0 says why first), and the engine's.
TrainResult Train(Session& session, const TrainOptions& options, const std::atomic<bool>& stop,
                  const std::vector<StepObserver*>& observers);

}  // namespace millrace
