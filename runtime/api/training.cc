#include "runtime/api/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/api/metrics.h"
#include "runtime/base/error.h"
#include "runtime/config/load.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/exec/run_checkpoint.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

ResumePolicy ResumePolicyOf(const Config& config) {
  switch (config.checkpoint.resume) {
    case CheckpointConfig::Resume::kAuto: return ResumePolicy::kAuto;
    case CheckpointConfig::Resume::kMust: return ResumePolicy::kMust;
    case CheckpointConfig::Resume::kNever: return ResumePolicy::kNever;
  }
  return ResumePolicy::kAuto;
}

// One run of the loop, on one rank.
class Loop {
 public:
  Loop(Session& session, const MfuBasis& basis, const std::atomic<bool>& stop, TrainObserver& observer)
      : session_(session),
        config_(session.config()),
        basis_(basis),
        stop_(stop),
        observer_(observer),
        identity_(IdentityOf(session)),
        resident_before_(PeakResidentBytes()) {}

  TrainResult Run() {
    Begin();
    const auto start = Clock::now();
    for (int64_t step = result_.first_step; step < config_.train.steps; ++step) {
      TrainStep(step);
      const int64_t done = step + 1;
      const bool last = done == config_.train.steps;
      if (config_.train.eval_every > 0 && (done % config_.train.eval_every == 0 || last)) Evaluate(done);
      const bool stopping = !last && StopAgreed();
      if (last || stopping)
        Save(done);
      else if (config_.checkpoint.every > 0 && done % config_.checkpoint.every == 0)
        TrySave(done);
      if (!stopping) continue;
      result_.preempted = true;
      break;
    }
    Finish(MillisecondsSince(start) / 1e3);
    return result_;
  }

 private:
  bool leader() const { return session_.rank() == 0; }

  void Begin() {
    const auto resumed = ResumeRun(session_.engine(), config_.run.dir, ResumePolicyOf(config_), identity_);
    if (resumed && leader())
      for (const std::string& warning : resumed->warnings) observer_.OnWarning(warning);
    if (resumed && !resumed->path.empty()) {
      result_.first_step = resumed->step;
      if (leader()) observer_.OnResume(resumed->step, resumed->path);
    } else {
      session_.InitWeights();
    }
    result_.last_step = result_.first_step;
    if (leader()) metrics_ = std::make_unique<MetricsFile>(config_.run.dir, result_.first_step);
    if (config_.train.eval_every > 0 && result_.first_step < config_.train.steps) {
      result_.eval_before = session_.Evaluate();
      if (leader()) observer_.OnEval(result_.first_step, *result_.eval_before);
    }
  }

  void TrainStep(int64_t step) {
    const auto start = Clock::now();
    const std::vector<int32_t> tokens = session_.batcher().Step(step, session_.rank());
    const StepScalars scalars = session_.engine().Step(tokens, step, session_.batcher().valid_tokens());
    StepReport report;
    report.step = step + 1;
    report.steps = config_.train.steps;
    report.loss = scalars.loss;
    report.grad_norm = scalars.grad_norm;
    report.lr = scalars.lr;
    report.tokens = (step + 1) * session_.batcher().valid_tokens();
    report.step_ms = MillisecondsSince(start);
    report.tokens_per_s = static_cast<double>(session_.batcher().valid_tokens()) / (report.step_ms / 1e3);
    if (basis_.peak_flops_per_rank > 0)
      report.mfu = report.tokens_per_s / session_.world() * basis_.flops_per_token / basis_.peak_flops_per_rank;
    report.peak_bytes = PeakResidentBytes();
    report.skipped = scalars.skipped;
    report.finite = scalars.finite != 0;
    if (!report.finite)
      report.offender = scalars.offender_unit < 0
                            ? fmt::format("loss on rank {}", scalars.offender_rank)
                            : fmt::format("gradient of unit {} on rank {}",
                                          session_.engine().layout().flats[static_cast<size_t>(scalars.offender_unit)].name, scalars.offender_rank);
    step_ms_.push_back(report.step_ms);
    std::vector<double> recent(step_ms_.end() - static_cast<std::ptrdiff_t>(std::min<size_t>(step_ms_.size(), 20)), step_ms_.end());
    std::nth_element(recent.begin(), recent.begin() + static_cast<std::ptrdiff_t>(recent.size() / 2), recent.end());
    report.eta_s = recent[recent.size() / 2] / 1e3 * static_cast<double>(report.steps - report.step);
    if (result_.last_step == result_.first_step) result_.first_loss = report.loss;
    result_.last_loss = report.loss;
    result_.last_step = report.step;
    if (!leader()) return;
    metrics_->Append(report);
    observer_.OnStep(report);
    if (!report.finite)
      observer_.OnWarning(fmt::format("step {}: non-finite {}; the update was skipped on all ranks ({} skipped so far)", report.step,
                                      report.offender, report.skipped));
  }

  void Evaluate(int64_t done) {
    result_.eval_after = session_.Evaluate();
    if (!leader()) return;
    metrics_->AppendEval(done, *result_.eval_after);
    observer_.OnEval(done, *result_.eval_after);
  }

  // True on every rank when any rank was asked to stop.
  bool StopAgreed() {
    const std::string mine(1, stop_.load() ? '1' : '0');
    const std::vector<std::string> votes = session_.engine().comms().world().HostAllGather(mine);
    return std::any_of(votes.begin(), votes.end(), [](const std::string& vote) { return vote == "1"; });
  }

  void Save(int64_t done) {
    if (metrics_) metrics_->Sync();
    const std::string path = SaveRun(session_.engine(), config_.run.dir, done, identity_, config_.checkpoint.keep);
    if (leader()) observer_.OnCheckpoint(done, path);
  }

  // A full or failing disk must not end a run that can go on: the earlier checkpoints are as they were.
  void TrySave(int64_t done) {
    try {
      Save(done);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kIo) throw;
      if (leader()) observer_.OnWarning(fmt::format("step {}: not saved: {}; training goes on", done, error.what()));
    }
  }

  void Finish(double seconds) {
    Summary summary;
    summary.param_hash = ParamHash(session_.engine());
    summary.optimizer_hash = OptimizerHash(session_.engine());
    if (!leader()) return;
    summary.result = result_;
    summary.plan_hash = PlanHash(*session_.run().plans.train);
    summary.counters = session_.engine().counters();
    summary.arena_bytes = session_.engine().arena_bytes();
    summary.resident_before_arena = resident_before_;
    summary.resident_peak = PeakResidentBytes();
    summary.world = session_.world();
    summary.seconds = seconds;
    if (!step_ms_.empty()) {
      std::sort(step_ms_.begin(), step_ms_.end());
      summary.median_step_ms = step_ms_[step_ms_.size() / 2];
      summary.tokens_per_s = static_cast<double>(session_.batcher().valid_tokens()) / (summary.median_step_ms / 1e3);
    }
    WriteSummary(config_.run.dir, summary);
  }

  Session& session_;
  const Config& config_;
  const MfuBasis& basis_;
  const std::atomic<bool>& stop_;
  TrainObserver& observer_;
  const RunIdentity identity_;
  const int64_t resident_before_;
  std::unique_ptr<MetricsFile> metrics_;
  std::vector<double> step_ms_;
  TrainResult result_;
};

}  // namespace

RunIdentity IdentityOf(const Session& session) {
  const Config& config = session.config();
  RunIdentity identity{ModelIdentity(config), "", config.data.shuffle_seed, 0, ConfigToJson(config)};
  if (session.has_data()) {
    identity.data_fingerprint = session.DataFingerprint();
    identity.global_batch = session.batcher().layout().GlobalBatch();
  }
  return identity;
}

TrainResult Train(Session& session, const MfuBasis& basis, const std::atomic<bool>& stop, TrainObserver& observer) {
  return Loop(session, basis, stop, observer).Run();
}

}  // namespace millrace
