// The training loop: data in, steps, evaluation, metrics and checkpoints out. What it prints is the observer's business.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/api/session.h"
#include "runtime/exec/run_checkpoint.h"

namespace millrace {

struct StepReport {
  int64_t step = 0;  // 1-based: steps done, this one included
  int64_t steps = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  int64_t tokens = 0;  // seen so far, all ranks
  double step_ms = 0, tokens_per_s = 0, mfu = 0;
  int64_t peak_bytes = 0;  // most resident memory of this rank's process so far
  int64_t skipped = 0;     // updates skipped so far
  bool finite = true;
  std::string offender;    // when not finite: "unit h.0 on rank 1"
  double eta_s = 0;
};

class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void OnResume(int64_t step, const std::string& checkpoint) = 0;
  virtual void OnStep(const StepReport& report) = 0;
  virtual void OnEval(int64_t step, double loss) = 0;
  virtual void OnCheckpoint(int64_t step, const std::string& path) = 0;
  virtual void OnWarning(const std::string& text) = 0;
};

struct TrainResult {
  int64_t first_step = 0;   // where this call began
  int64_t last_step = 0;    // steps done in all
  bool preempted = false;   // stopped on request, state saved
  double first_loss = 0, last_loss = 0;          // training loss of the first and last step of this call
  std::optional<double> eval_before, eval_after; // held-out loss, when train.eval_every is set
};

// Peak rate that MFU is measured against, and where it comes from.
struct MfuBasis {
  double flops_per_token = 0;        // model FLOPs, forward and backward, causal attention
  double flops_per_token_full = 0;   // the same with attention counted over the whole square
  double peak_flops_per_rank = 0;    // 0: MFU is not reported
  std::string text;                  // "6*N_matmul + 6*L*T*d_attn; peak ..."
};

// What checkpoints of this session's run belong to. Data is described when the session has opened it.
RunIdentity IdentityOf(const Session& session);

// Trains until train.steps or until `stop` is set on any rank; then every rank saves and returns. Rank 0 calls the observer and writes
// run.dir/metrics.jsonl and run.dir/summary.json. checkpoint.resume decides whether the newest valid checkpoint is continued.
// Errors: kCheckpoint, kConfig (another model in the same folder), kData, kIo, and the engine's.
TrainResult Train(Session& session, const MfuBasis& basis, const std::atomic<bool>& stop, TrainObserver& observer);

}  // namespace millrace
