// The training loop: data in, steps, evaluation, metrics and checkpoints out. What it prints is the
// observer's business.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/api/guard.h"
#include "runtime/api/metrics_server.h"
#include "runtime/api/saver.h"
#include "runtime/api/session.h"
#include "runtime/api/train_faults.h"
#include "runtime/exec/run_checkpoint.h"
#include "runtime/plan/cost/machine.h"

namespace millrace {

struct StepReport {
  int64_t step = 0;  // 1-based: steps done, this one included
  int64_t steps = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  int64_t tokens = 0;  // seen so far, all ranks
  double step_ms = 0, tokens_per_s = 0, mfu = 0;
  double enqueue_us = 0;  // host time to issue the step; on a host device, to run it
  // Most memory in use so far: this rank's device, or its process's resident size.
  int64_t peak_bytes = 0;
  int64_t skipped = 0;   // updates skipped so far
  bool applied = true;   // the update; else why not:
  std::string offender;  // "gradient of unit h.0 on rank 1", "loss 8.1 above 3.2"
  std::optional<double>
      max_loss;           // that guard.loss_spike allowed, where it had a window full of losses
  int64_t data_step = 0;  // whose data it read: `step`, and later after roll-backs
  std::vector<RollBack> rolled_back;  // to the step before this one
  int64_t roll_backs = 0;             // of the run so far
  // Held-out loss after this step, when train.eval_every asks for it.
  std::optional<double> eval_loss;
  double eta_s = 0;
  SaveFigures saves;  // since the step before
};

// Called on rank 0 only.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void OnResume(int64_t step, const std::string& checkpoint) = 0;
  virtual void OnStep(const StepReport& report) = 0;  // before the step's evaluation
  virtual void OnEval(int64_t step, double loss) = 0;
  virtual void OnCheckpoint(int64_t step, const std::string& path) = 0;
  virtual void OnWarning(const std::string& text) = 0;
};

struct TrainResult {
  int64_t first_step = 0;  // where this call began
  int64_t last_step = 0;   // steps done in all
  // train.steps were done already: nothing was trained, and no file changed but a summary.json that
  // was missing (rebuilt_summary.h).
  bool complete_before = false;
  bool preempted = false;  // stopped on request, state saved
  // Training loss of the first and last step of this call; none where a
  // roll-back has undone all of them.
  std::optional<double> first_loss, last_loss;
  std::optional<double> eval_before, eval_after;  // held-out loss, when train.eval_every is set
};

struct TrainOptions {
  Machine machine;  // what MFU and the predicted figures are for, as FindMachine gives it
  std::vector<TrainFault> faults;
  // Where each configuration key's value comes from, as LoadedConfig has it: recorded in
  // run.dir/config.json.
  std::map<std::string, std::string> origin = {};
  MetricsServer* metrics_server =
      nullptr;                  // rank 0's: is given each step when its line has been written
  FileSystem* files = nullptr;  // that checkpoints are written with; null: the machine's
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
// Rank 0 calls the observer and writes run.dir/config.json, metrics.jsonl, summary.json,
// roll_backs.jsonl where there was one, timeline.json where a step is traced and, where
// run.tensorboard asks for them, event files. checkpoint.resume decides whether the newest valid
// checkpoint is continued. Errors: kCheckpoint, kConfig (another model in the same folder; a fault
// where there is no such rank or unit), kData, kIo, kNonFinite (a guard stops the run; rank 0 says
// why first), and the engine's.
TrainResult Train(Session& session, const TrainOptions& options, const std::atomic<bool>& stop,
                  TrainObserver& observer);

}  // namespace millrace
