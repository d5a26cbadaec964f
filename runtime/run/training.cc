#include "runtime/run/training.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/config/load.h"
#include "runtime/data/file_system.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/exec/state_check.h"
#include "runtime/record/metrics.h"
#include "runtime/record/roll_back_log.h"
#include "runtime/record/run_environment.h"
#include "runtime/record/run_folder.h"
#include "runtime/record/run_history.h"
#include "runtime/record/summary.h"
#include "runtime/record/tensorboard.h"
#include "runtime/run/call_record.h"
#include "runtime/run/rebuilt_summary.h"
#include "runtime/run/run_checkpoint.h"
#include "runtime/run/saver.h"
#include "runtime/run/step_trace.h"
#include "runtime/watch/bad_step.h"
#include "runtime/watch/guard.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

const char* BackendName(const PlanOptions& options) {
  return options.backend == Backend::kCuda ? "cuda" : "cpu";
}

// A step that is in flight.
struct Waiting {
  int64_t step = 0;
  double enqueue_us = 0;
};

// One run of the loop, on one rank.
class Loop {
 public:
  Loop(Session& session, const TrainOptions& options, const std::atomic<bool>& stop,
       TrainObserver& observer)
      : session_(session),
        config_(session.config()),
        machine_(options.machine),
        origin_(options.origin),
        metrics_server_(options.metrics_server),
        files_(options.files != nullptr ? *options.files : FileSystem::Posix()),
        trace_step_(options.trace_step),
        on_begin_(options.on_begin),
        faults_(options.faults, session.engine()),
        guard_(config_.guard),
        stop_(stop),
        observer_(observer),
        identity_(IdentityOf(session)),
        record_(session, options.machine, identity_.global_batch),
        lag_(session.engine().lag()) {}

  TrainResult Run() {
    const PhaseScope phase = session_.Phase(RunPhase::kTraining);
    Begin();
    if (result_.complete_before) return result_;
    const auto start = Clock::now();
    for (int64_t step = result_.first_step; step < config_.train.steps && !result_.preempted;) {
      const int64_t done = step + 1;
      const bool last = done == config_.train.steps;
      const bool evaluates =
          config_.train.eval_every > 0 && (done % config_.train.eval_every == 0 || last);
      const bool saves = config_.checkpoint.every > 0 && done % config_.checkpoint.every == 0;
      const bool twice = IsDue(config_.guard.rerun_every, done);
      if (twice || StartsTrace(done)) CollectDownTo(0, false);
      if (!bad_) {
        PrepareTrace(done);
        Enqueue(step, twice);
        const bool stopping = StopAgreed(done, saves || last) && !last;
        CollectDownTo(last || stopping || evaluates || saves || tracer_ ? 0 : lag_, evaluates);
        result_.preempted = stopping;
      }
      if (!bad_) FinishTrace(done);
      if (bad_) {
        step = GoBack();
        continue;
      }
      if (IsDue(config_.guard.replicas_every, done)) CompareReplicas(done);
      if (last || result_.preempted || saves)
        Note(LogLevel::kDebug, "step {}: saving{}", done,
             result_.preempted ? ", asked to stop" : "");
      if (last || result_.preempted)
        saver_->SaveLast(ProgressAt(done), EvalLossAt(done));
      else if (saves)
        saver_->Save(ProgressAt(done), EvalLossAt(done));
      step = done;
    }
    Finish(MillisecondsSince(start) / 1e3);
    return result_;
  }

 private:
  bool leader() const { return session_.rank() == 0; }
  ProgressMarks* marks() const { return session_.marks(); }

  std::optional<ResumedRun> Resume(ResumePolicy policy) {
    const PhaseScope phase = session_.Phase(RunPhase::kLoading);
    return ResumeRun(session_.engine(), config_.run.dir, policy, identity_);
  }

  // For the logs: what every rank does.
  template <class... Args>
  void Note(LogLevel level, fmt::format_string<Args...> text, Args&&... args) {
    Log& log = session_.log();
    if (log.Wants(level))
      log.Write(level, LogScope::kAllRanks, fmt::format(text, std::forward<Args>(args)...));
  }

  // What the leader says or writes down.
  template <class F>
  void Report(F&& say) {
    if (!leader()) return;
    const PhaseScope phase = session_.Phase(RunPhase::kReporting);
    say();
  }

  void Begin() {
    const std::optional<ResumedRun> resumed = Resume(config_.checkpoint.resume);
    if (resumed)
      Report([&] {
        for (const std::string& warning : resumed->warnings) observer_.OnWarning(warning);
      });
    const bool goes_on = resumed && !resumed->path.empty();
    Note(LogLevel::kDebug, "{}",
         goes_on ? fmt::format("loaded step {} from {}", resumed->progress.step, resumed->path)
                 : "nothing to load: fresh weights");
    if (goes_on) {
      record_.BeginAfter(resumed->progress.step, resumed->progress.samples);
    } else {
      session_.InitWeights();
      record_.BeginAfter(0, 0);
    }
    record_.Describe(result_);
    result_.complete_before = goes_on && result_.first_step >= config_.train.steps;
    if (result_.complete_before) {
      const std::string said = WriteMissingSummary(session_, machine_, *resumed);
      if (!said.empty()) Report([&] { observer_.OnWarning(said); });
      return;
    }
    if (goes_on)
      RestoreGuard(
          resumed->progress.state);  // a log that cannot be read ends it before a file changes
    if (on_begin_) on_begin_();
    const RunEnvironment environment =
        Together(session_.engine().comms().world().HostAllGather(PackedText(session_.Describe())));
    Report([&] {
      if (goes_on)
        for (const std::string& change : resumed->changes) observer_.OnWarning(change);
      if (goes_on) observer_.OnResume(result_.first_step, resumed->path);
      // Nothing is loaded, and something is said or nothing was to be: an earlier run is put aside,
      // its lines with it.
      const bool anew = !goes_on && (resumed || config_.checkpoint.resume == ResumePolicy::kNever);
      OpenFiles(result_.first_step, anew ? OldMetrics::kSetAside : OldMetrics::kDropTail);
      if (metrics_->dropped() > 0)
        observer_.OnWarning(
            fmt::format("{} steps after step {} were not saved: they are trained again",
                        metrics_->dropped(), result_.first_step));
      if (metrics_->missing() > 0)
        observer_.OnWarning(
            fmt::format("metrics.jsonl is damaged: it lacks {} of the {} steps that were saved",
                        metrics_->missing(), result_.first_step));
      plan_stages_ = PlanStages(config_, session_.run());
      RecordedCall call =
          DescribeCall(config_, origin_, plan_stages_,
                       {result_.first_step, session_.world(), BackendName(session_.run().options)});
      call.environment = environment;
      call.environment.emplace_back("data fingerprint",
                                    identity_.data_fingerprint);  // a path may hold others
      const std::string warning = RecordCall(config_.run.dir, call);
      if (!warning.empty()) observer_.OnWarning(warning);
      if (trace_step_ > 0 &&
          (FirstTraced() <= result_.first_step || trace_step_ > config_.train.steps))
        observer_.OnWarning(fmt::format(
            "no timeline: this call trains steps {} to {}, and one of step {} takes steps {} to {}",
            result_.first_step + 1, config_.train.steps, trace_step_, FirstTraced(), trace_step_));
    });
    if (!goes_on) RestoreGuard("{}");  // roll-backs of a run that is put aside are gone by now
    if (config_.guard.order_every > 0) session_.engine().LogOrder();
    saver_ = std::make_unique<Saver>(session_, identity_, files_, CallbacksOfSaver());
    if (config_.train.eval_every > 0) {
      result_.eval_before = session_.Evaluate();
      Report([&] { observer_.OnEval(result_.first_step, *result_.eval_before); });
    }
  }

  // Those that have a line per step, of steps up to `step`.
  void OpenFiles(int64_t step, OldMetrics old) {
    metrics_ = std::make_unique<MetricsFile>(config_.run.dir, step, old);
    if (config_.run.tensorboard)
      events_ = std::make_unique<TensorBoardFile>(
          config_.run.dir, step, [this](const std::string& text) { observer_.OnWarning(text); });
  }

  // Roll-backs may have been made since the checkpoint was saved; rank 0 knows.
  void RestoreGuard(std::string state) {
    Report([&] { state = StateAfterRollBacks(config_.run.dir, result_.first_step, state); });
    guard_.Restore(session_.engine().comms().world().HostBroadcast(state, 0));
  }

  // A traced step, and those that prepare it, are alone in flight.
  int64_t FirstTraced() const { return trace_step_ - StepTracer::StepsBefore(session_); }
  bool StartsTrace(int64_t done) const { return trace_step_ > 0 && done == FirstTraced(); }
  void PrepareTrace(int64_t done) {
    if (StartsTrace(done)) tracer_ = std::make_unique<StepTracer>(session_);
    if (!tracer_) return;
    record_.WalksOtherwise(done);
    if (done == trace_step_) tracer_->Begin();
  }
  void FinishTrace(int64_t done) {
    if (!tracer_ || done != trace_step_) return;
    const std::string text = tracer_->TextOfStep(done);
    tracer_.reset();
    Report([&] {
      try {
        WriteFileAtomically(FileSystem::Posix(), config_.run.dir + "/" + kTimelineName, text);
      } catch (const Error& error) {
        observer_.OnWarning(fmt::format("no timeline of step {}: {}", done, error.what()));
      }
    });
  }

  static bool IsDue(int64_t every, int64_t done) { return every > 0 && done % every == 0; }

  RunProgress ProgressAt(int64_t done) const {
    return {done, record_.SamplesAfter(done), guard_.State()};
  }

  std::vector<int32_t> TokensOf(int64_t step) {
    const PhaseScope phase = session_.Phase(RunPhase::kReadingTokens, step);
    std::vector<int32_t> tokens =
        session_.batcher().Step(step + guard_.data_shift(), session_.rank());
    faults_.SpoilTokens(step + 1, tokens, config_.model.Vocab());
    return tokens;
  }

  void Enqueue(int64_t step, bool twice) {
    if (waiting_.empty()) record_.StartsAfresh();
    const std::vector<int32_t> tokens = TokensOf(step);
    const auto enqueue = [&] {
      session_.engine().Enqueue(tokens, step, session_.batcher().valid_tokens(),
                                faults_.At(step + 1), guard_.MaxLoss(step + 1));
    };
    std::optional<StepTwice> rerun;
    if (twice) rerun.emplace(session_.engine());
    faults_.FlipBits(step + 1, session_.engine());
    Note(LogLevel::kTrace, "step {}: tokens read", step + 1);
    if (rerun) {
      enqueue();
      rerun->KeepFirst(session_.engine());
    }
    const auto start = Clock::now();
    enqueue();
    waiting_.push_back({step, 1e3 * MillisecondsSince(start)});
    Note(LogLevel::kTrace, "step {}: issued in {:.0f} us", step + 1, waiting_.back().enqueue_us);
    faults_.Done(step + 1);
    if (!rerun) return;
    const std::string difference = rerun->Compare(session_.engine());
    if (!difference.empty())
      Stop(fmt::format("step {}, run twice from the same state, gave two results: {}", step + 1,
                       difference));
  }

  // Reports the oldest steps until `left` are in flight. With `evaluates`, the
  // newest of them is evaluated.
  void CollectDownTo(int left, bool evaluates) {
    while (!bad_ && static_cast<int>(waiting_.size()) > left) {
      const StepScalars scalars = session_.engine().Collect();
      const GuardAction action = guard_.Judge(waiting_.front().step + 1, scalars);
      StepReport report = ReportOf(waiting_.front(), scalars, action);
      waiting_.pop_front();
      if (action ==
          GuardAction::kRollBack) {  // its line would go with those of the steps that are undone
        bad_ = RollBack{report.step, 0, report.offender};
        return;
      }
      if (evaluates && waiting_.empty()) Evaluate(report);
      report.saves = saver_->TakeFigures();
      Report([&] {
        const std::string said = metrics_->Append(report);
        const bool waits = metrics_->waiting() > 0;
        MR_REQUIRE(ErrorCode::kIo,
                   !waits || config_.checkpoint.on_error == CheckpointConfig::OnError::kContinue,
                   "{}", said);
        if (!said.empty())
          observer_.OnWarning(said +
                              (waits ? "; training goes on, and its lines wait in memory" : ""));
        if (events_ != nullptr) events_->Append(report.step, ScalarsOf(report));
        if (metrics_server_ != nullptr) metrics_server_->Store(FiguresOf(report, saver_->totals()));
      });
      if (marks() != nullptr) marks()->Enter(RunPhase::kTraining, report.step);
      if (action == GuardAction::kStop)
        Stop(fmt::format("step {}: {}", report.step,
                         WhyStopped(scalars, session_.engine().layout(), config_.guard,
                                    guard_.roll_backs().size())));
    }
  }

  StepReport ReportOf(const Waiting& waiting, const StepScalars& scalars, GuardAction action) {
    StepReport report = record_.Add(waiting.step + 1, waiting.enqueue_us, scalars);
    record_.Describe(result_);
    if (!report.applied) report.offender = OffenderOf(scalars, session_.engine().layout());
    report.data_step = report.step + guard_.data_shift();
    for (const RollBack& made : guard_.roll_backs())
      if (made.to == report.step - 1) report.rolled_back.push_back(made);
    report.roll_backs = static_cast<int64_t>(guard_.roll_backs().size());
    Note(LogLevel::kDebug, "step {}: loss {:.6f}, norm {:.4f}, {:.1f} ms{}", report.step,
         report.loss, report.grad_norm, report.step_ms,
         report.applied ? "" : ", not applied: " + report.offender);
    Report([&] {
      observer_.OnStep(report);
      if (action == GuardAction::kSkip)
        observer_.OnWarning(fmt::format(
            "step {}: {}; the update was skipped on all ranks ({} skipped so far)", report.step,
            WhatWasBad(scalars, session_.engine().layout()), report.skipped));
    });
    return report;
  }

  void Evaluate(StepReport& report) {
    report.eval_loss = result_.eval_after = session_.Evaluate();
    evaluated_ = report.step;
    Note(LogLevel::kDebug, "step {}: held-out loss {:.6f}", report.step, *report.eval_loss);
    Report([&] { observer_.OnEval(report.step, *report.eval_loss); });
  }

  // Every rank comes here with the same words. What is in flight of a
  // checkpoint is of a sound state.
  [[noreturn]] void Stop(const std::string& why) {
    saver_->SettleForStop();
    Report([&] {
      try {
        metrics_->Sync();
      } catch (const Error& error) {
        observer_.OnWarning(error.what());
      }
    });
    if (!leader())
      session_.engine().comms().world().Barrier();  // rank 0 speaks, which ends all ranks
    throw Error(ErrorCode::kNonFinite,
                why + "; the run stops and saves nothing: checkpoints are as they were");
  }

  // From a step whose numbers ask for it to the newest sound checkpoint: the step to be trained
  // next.
  int64_t GoBack() {
    for (; !waiting_.empty(); waiting_.pop_front())
      session_.engine().Collect();  // on CUDA, the next one
    tracer_.reset();
    saver_->Settle();
    RollBack made = *std::exchange(bad_, std::nullopt);
    const std::optional<ResumedRun> resumed = Resume(ResumePolicy::kAuto);
    const bool loaded = resumed && !resumed->path.empty();
    if (!loaded) {
      session_.InitWeights();
      session_.engine().SetCounters({});
    }
    made.to = loaded ? resumed->progress.step : 0;
    record_.GoBackTo(made.to, loaded ? resumed->progress.samples : 0);
    if (evaluated_ > made.to) result_.eval_after.reset(), evaluated_ = 0;
    record_.Describe(result_);
    guard_.RolledBack(made, loaded ? resumed->progress.state : "{}");
    Note(LogLevel::kDebug, "step {}: {}: rolled back to step {}", made.from, made.why, made.to);
    Report([&] {
      if (resumed)
        for (const std::string& warning : resumed->warnings) observer_.OnWarning(warning);
      LogRollBack(config_.run.dir, guard_.roll_backs(), guard_.State());
      OpenFiles(made.to, OldMetrics::kDropTail);
      observer_.OnWarning(fmt::format(
          "step {}: {}: rolled back to {}; the data of {} left out ({} of {} roll-backs)",
          made.from, made.why, loaded ? fmt::format("step {}", made.to) : "the beginning",
          made.from == made.to + 1 ? fmt::format("step {} are", made.from)
                                   : fmt::format("steps {} to {} are", made.to + 1, made.from),
          guard_.roll_backs().size(), config_.guard.max_roll_backs));
    });
    return made.to;
  }

  void CompareReplicas(int64_t done) {
    const std::string difference = DifferingReplicas(session_.engine());
    if (!difference.empty()) Stop(fmt::format("after step {}: {}", done, difference));
  }

  // Digests of what each rank has issued; histories only where they differ.
  void CompareOrder(int64_t done, const std::vector<std::string>& digests) {
    const CommSet& comms = session_.engine().comms();
    const std::optional<OrderDifference> difference = FirstDifference(comms, digests);
    if (!difference) return;
    std::vector<std::string> units;
    for (const LayoutUnit& unit : session_.run().layout.units) units.push_back(unit.name);
    const std::vector<std::string> all =
        comms.world().HostAllGather(session_.engine().order()->History(difference->comm));
    std::vector<std::string> histories;
    for (const int rank : difference->ranks) histories.push_back(all[static_cast<size_t>(rank)]);
    Stop(fmt::format("after step {}: {}", done,
                     DescribeOrder(comms.members()[difference->comm].name, difference->ranks,
                                   histories, units)));
  }

  // Once a step each rank says whether it was asked to stop, how its part of a save is doing,
  // whether it has warnings, and, every guard.order_every steps and where a checkpoint follows,
  // what collectives it has issued. True on every rank when any was asked.
  bool StopAgreed(int64_t done, bool saves) {
    const std::string warnings = session_.log().TakeWarnings();
    std::string mine = {stop_.load() ? '1' : '0', saver_->Vote(), warnings.empty() ? '0' : '1'};
    const bool order =
        session_.engine().order() != nullptr && (saves || IsDue(config_.guard.order_every, done));
    if (order) mine += session_.engine().order()->Digests();
    bool stop = false, warned = false;
    std::string saves_of_ranks;
    std::vector<std::string> digests;
    Communicator& world = session_.engine().comms().world();
    for (const std::string& vote : world.HostAllGather(mine)) {
      stop |= vote[0] == '1';
      saves_of_ranks += vote[1];
      warned |= vote[2] == '1';
      digests.push_back(vote.substr(3));
    }
    if (warned) session_.log().Meet(world.HostAllGather(warnings));
    saver_->Hear(saves_of_ranks);
    if (order) CompareOrder(done, digests);
    return stop;
  }

  std::optional<double> EvalLossAt(int64_t done) const {
    return evaluated_ == done ? result_.eval_after : std::nullopt;
  }

  SaverCallbacks CallbacksOfSaver() {
    return {.on_saved = [this](int64_t step,
                               const std::string& folder) { observer_.OnCheckpoint(step, folder); },
            .on_warning = [this](const std::string& text) { observer_.OnWarning(text); },
            // A checkpoint's steps have their lines, whatever happens to the machine.
            .before_publishing = [this] { metrics_->Sync(); }};
  }

  void Finish(double seconds) {
    const PhaseScope phase = session_.Phase(RunPhase::kEnding);
    const std::string param_hash = ParamHash(session_.engine());
    const std::string optimizer_hash = OptimizerHash(session_.engine());
    if (!leader()) return;
    metrics_->Sync();
    Summary summary = record_.Summarize(result_, seconds);
    summary.param_hash = param_hash;
    summary.optimizer_hash = optimizer_hash;
    summary.plan_stages = plan_stages_;
    summary.saves = saver_->totals();
    WriteSummary(config_.run.dir, summary);
  }

  Session& session_;
  const Config& config_;
  const Machine machine_;
  const std::map<std::string, std::string> origin_;
  MetricsServer* const metrics_server_;
  FileSystem& files_;
  const int64_t trace_step_;
  const std::function<void()> on_begin_;
  TrainFaults faults_;
  Guard guard_;
  std::optional<RollBack> bad_;  // a step was collected whose numbers ask for a roll-back
  const std::atomic<bool>& stop_;
  TrainObserver& observer_;
  const RunIdentity identity_;
  CallRecord record_;
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<StepTracer> tracer_;       // from the steps that prepare a traced one to its end
  std::unique_ptr<TensorBoardFile> events_;  // when run.tensorboard asks for them
  std::vector<PlanStage> plan_stages_;       // rank 0
  // Steps that are still in flight when the next one is issued: the device never waits for the host
  // to look at a loss. On a host device a step has run when it was issued.
  const int lag_;
  std::deque<Waiting> waiting_;
  int64_t evaluated_ = 0;  // the last step that was
  TrainResult result_;
  std::unique_ptr<Saver> saver_;  // after what its thread uses
};

}  // namespace

RunIdentity IdentityOf(const Session& session) {
  const Config& config = session.config();
  RunIdentity identity{ModelIdentity(config), "", config.data.shuffle_seed, 0, ConfigToJson(config),
                       session.tuning_table()};
  if (session.has_data()) {
    identity.data_fingerprint = session.DataFingerprint();
    identity.global_batch = session.batcher().layout().GlobalBatch();
  }
  return identity;
}

TrainResult Train(Session& session, const TrainOptions& options, const std::atomic<bool>& stop,
                  TrainObserver& observer) {
  return Loop(session, options, stop, observer).Run();
}

}  // namespace millrace
