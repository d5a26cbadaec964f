#include "runtime/run/training/training.h"

#include <chrono>

#include "runtime/base/error.h"
#include "runtime/config/load.h"
#include "runtime/data/file_system.h"
#include "runtime/exec/agreement/order_log.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/state_check.h"
#include "runtime/record/run_folder.h"
#include "runtime/run/data/run_tokenizer.h"
#include "runtime/run/data/token_rows.h"
#include "runtime/run/training/rank_votes.h"
#include "runtime/run/training/training_loop.h"
#include "runtime/watch/bad_step.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

bool IsDue(int64_t every, int64_t done) { return every > 0 && done % every == 0; }

}  // namespace

TrainingLoop::TrainingLoop(Session& session, const TrainOptions& options,
                           const std::atomic<bool>& stop,
                           const std::vector<StepObserver*>& observers)
    : session_(session),
      config_(session.config()),
      options_(options),
      guard_(config_.guard),
      stop_(stop),
      observers_(observers),
      identity_(IdentityOf(session)),
      tasks_(OpenTasks(config_, config_.eval.tasks.value_or(std::vector<std::string>()),
                       config_.eval.limit.value_or(0))),
      record_(session, options.machine, identity_.global_batch),
      trace_(session, options.trace_step),
      lag_(session.engine().lag()) {}

TrainResult TrainingLoop::Run() {
  const PhaseScope phase = session_.Phase(RunPhase::kTraining);
  Begin();
  if (result_.complete_before) return result_;
  const auto start = Clock::now();
  for (int64_t step = result_.first_step; step < config_.train.steps && !result_.preempted;) {
    DoStep(step + 1);
    if (bad_) {
      step = GoBack();
      continue;
    }
    Save(++step);
  }
  saver_->Settle();  // of a run whose last step has no checkpoint: one may be in flight
  Finish(MillisecondsSince(start) / 1e3);
  return result_;
}

// Issues step `done`, and collects what is to be known before the next one.
void TrainingLoop::DoStep(int64_t done) {
  const bool last = done == config_.train.steps;
  const Due due = {config_.train.eval_every > 0 && (IsDue(config_.train.eval_every, done) || last),
                   !tasks_.empty() && (IsDue(config_.eval.every, done) || last)};
  const bool saves = IsDue(config_.checkpoint.every, done);
  const bool twice = IsDue(config_.guard.rerun_every, done);
  if (twice || trace_.StartsAt(done)) CollectDownTo(0, {});
  if (bad_) return;
  trace_.Prepare(done);
  if (trace_.active()) record_.WalksOtherwise(done);
  Enqueue(done - 1, twice);
  const bool stopping = StopAgreed(done, saves || last) && !last;
  const bool waits = last || stopping || due.loss || due.scores || saves || trace_.active();
  CollectDownTo(waits ? 0 : lag_, due);
  result_.preempted = stopping;
  if (!bad_) FinishTrace(done);
}

// What is due after step `done`, whose numbers are good as far as they are known.
void TrainingLoop::Save(int64_t done) {
  if (IsDue(config_.guard.replicas_every, done))
    if (const std::string difference = DifferingReplicas(session_.engine()); !difference.empty())
      Stop(fmt::format("after step {}: {}", done, difference));
  const bool last = result_.preempted || (config_.checkpoint.at_end && done == config_.train.steps);
  if (!last && !IsDue(config_.checkpoint.every, done)) return;
  Note(LogLevel::kDebug, "step {}: saving{}", done, result_.preempted ? ", asked to stop" : "");
  const std::optional<double> loss = evaluated_ == done ? result_.eval_after : std::nullopt;
  if (last)
    saver_->SaveLast(ProgressAt(done), loss);
  else
    saver_->Save(ProgressAt(done), loss);
}

std::vector<int32_t> TrainingLoop::TokensOf(const Batch& batch) {
  const PhaseScope phase = session_.Phase(RunPhase::kReadingTokens, batch.step - 1);
  std::vector<int32_t> tokens = session_.batcher().Step(batch.number - 1, session_.data_rank());
  Tell(&StepObserver::OnTokens, batch.step, std::span(tokens));
  return tokens;
}

// A batch may wait from a call whose buffers were smaller: the one plan has room for all now.
const StepPlan& TrainingLoop::PlanOf(const Batch& batch) const {
  const RunPlans& plans = session_.engine().plans();
  const StepPlan* const again = plans.Find(kAgain);
  return batch.again && again != nullptr ? *again : plans.Of("train");
}

void TrainingLoop::Enqueue(int64_t step, bool twice) {
  if (waiting_.empty()) record_.StartsAfresh();
  const Batch batch = guard_.Next(step + 1);
  if (batch.again && trace_.active()) {
    trace_.Drop();
    Warn(fmt::format("no timeline: step {} runs a batch again, by another plan", batch.step));
  }
  const TokenRows rows = StepRows(config_, session_.batcher(), batch.number - 1,
                                  session_.data_rank(), TokensOf(batch));
  const LossTotals totals = TotalsOf(config_, session_.batcher(), batch.number - 1);
  if (totals.weights == 0)
    Warn(
        fmt::format("step {}: its data has no target that counts (data.loss_mask): its loss and "
                    "gradients are 0",
                    batch.step));
  const auto enqueue = [&] {
    session_.engine().Enqueue(rows.inputs(), step, totals, guard_.MaxLoss(step + 1),
                              PlanOf(batch).name);
  };
  std::optional<StepTwice> rerun;
  if (twice) rerun.emplace(session_.engine());
  Tell(&StepObserver::OnIssue, step + 1);
  Note(LogLevel::kTrace, "step {}: tokens read", step + 1);
  if (rerun) {
    enqueue();
    rerun->KeepFirst(session_.engine());
  }
  const auto start = Clock::now();
  enqueue();
  waiting_.push_back({batch, guard_.Drawn(batch.step), 1e3 * MillisecondsSince(start)});
  Note(LogLevel::kTrace, "step {}: issued in {:.0f} us", step + 1, waiting_.back().enqueue_us);
  Tell(&StepObserver::OnIssued, step + 1);
  if (!rerun) return;
  const std::string difference = rerun->Compare(session_.engine());
  if (!difference.empty())
    Stop(fmt::format("step {}, run twice from the same state, gave two results: {}", step + 1,
                     difference));
}

// True on every rank when any was asked to stop. Every guard.order_every steps and where a
// checkpoint follows, what collectives the ranks have issued is compared.
bool TrainingLoop::StopAgreed(int64_t done, bool saves) {
  const bool order =
      session_.engine().order() != nullptr && (saves || IsDue(config_.guard.order_every, done));
  const RankVotes votes = MeetRanks(session_, done, stop_.load(), saver_->Vote(), order);
  saver_->Hear(votes.saves);
  if (!votes.order_difference.empty()) Stop(votes.order_difference);
  return votes.stop;
}

// Reports the oldest steps until `left` are in flight. What is due is of the newest of them.
void TrainingLoop::CollectDownTo(int left, const Due& due) {
  while (!bad_ && static_cast<int>(waiting_.size()) > left) {
    const StepScalars scalars = session_.engine().Collect();
    const GuardAction action = guard_.Judge(waiting_.front().batch, scalars);
    StepReport report = ReportOf(waiting_.front(), scalars, action);
    waiting_.pop_front();
    if (action == GuardAction::kRollBack) {
      // Its line would go with those of the steps that are undone.
      bad_ = RollBack{report.step, 0, report.offender};
      return;
    }
    if (due.loss && waiting_.empty()) Evaluate(report);
    if (due.scores && waiting_.empty()) ScoreTasks(report);
    report.saves = saver_->TakeFigures();
    Report(&StepObserver::OnStepDone, report, saver_->totals());
    if (session_.marks() != nullptr) session_.marks()->Enter(RunPhase::kTraining, report.step);
    if (action == GuardAction::kStop)
      Stop(fmt::format("step {}: {}", report.step,
                       WhyStopped(scalars, session_.engine().layout(), config_.guard,
                                  guard_.roll_backs().size())));
  }
}

StepReport TrainingLoop::ReportOf(const Waiting& waiting, const StepScalars& scalars,
                                  GuardAction action) {
  const Engine& engine = session_.engine();
  StepReport report =
      record_.Add(waiting.batch, PlanOf(waiting.batch), waiting.enqueue_us, scalars);
  record_.Describe(result_);
  const bool overflown = !report.applied && IsOverflow(scalars.offender_unit);
  if (overflown)
    report.offender = OverflowText(engine.plans().Of("train"), OverflowsOf(engine));
  else if (!report.applied)
    report.offender = scalars.scaled_down != 0 ? ScaledDownText(scalars, engine.layout())
                                               : OffenderOf(scalars, engine.layout());
  report.waiting_batches = static_cast<int64_t>(guard_.waiting().size());
  report.sources = session_.SourcesAfter(waiting.drawn);
  for (const RollBack& made : guard_.roll_backs())
    if (made.to == report.step - 1) report.rolled_back.push_back(made);
  report.roll_backs = static_cast<int64_t>(guard_.roll_backs().size());
  Note(LogLevel::kDebug, "step {}: loss {:.6f}, norm {:.4f}, {:.1f} ms{}", report.step, report.loss,
       report.grad_norm, report.step_ms, report.applied ? "" : ", not applied: " + report.offender);
  Report(&StepObserver::OnStep, report);
  if (overflown)
    Warn(
        fmt::format("step {}: {}; the update was skipped on all ranks, the batch will run again "
                    "({} wait)",
                    report.step, report.offender, report.waiting_batches));
  else if (scalars.scaled_down != 0)
    Note(LogLevel::kInfo,
         "step {}: {}; the update was skipped on all ranks, the next step's scale is {}",
         report.step, report.offender, scalars.next_loss_scale);
  else if (action == GuardAction::kSkip)
    Warn(fmt::format("step {}: {}; the update was skipped on all ranks ({} skipped so far)",
                     report.step, WhatWasBad(scalars, engine.layout()), report.skipped));
  return report;
}

void TrainingLoop::Evaluate(StepReport& report) {
  const Session::HeldOutLoss held_out = session_.EvaluateHeldOut();
  report.eval_loss = result_.eval_after = held_out.loss;
  report.eval_sources = held_out.sources;
  evaluated_ = report.step;
  Note(LogLevel::kDebug, "step {}: held-out loss {:.6f}", report.step, *report.eval_loss);
  Report(&StepObserver::OnEval, report.step, *report.eval_loss);
}

void TrainingLoop::ScoreTasks(StepReport& report) {
  for (const OpenTask& task : tasks_) {
    report.scores.push_back(ScoreTask(session_, task).scores);
    Note(LogLevel::kDebug, "step {}: {}: {}", report.step, task.name,
         InWords(report.scores.back()));
  }
  Report(&StepObserver::OnScores, report.step, report.scores);
}

void TrainingLoop::FinishTrace(int64_t done) {
  const std::optional<std::string> text = trace_.Finish(done);
  if (!text || !leader()) return;
  const PhaseScope phase = session_.Phase(RunPhase::kReporting);
  try {
    WriteFileAtomically(FileSystem::Posix(), config_.run.dir + "/" + kTimelineName, *text);
  } catch (const Error& error) {
    Warn(fmt::format("no timeline of step {}: {}", done, error.what()));
  }
}

// Every rank comes here with the same words. What is in flight of a checkpoint is of a sound state.
void TrainingLoop::Stop(const std::string& why) {
  saver_->SettleForStop();
  Report(&StepObserver::OnStop);
  if (!leader())
    session_.engine().comms().world().Barrier();  // rank 0 speaks, which ends all ranks
  throw Error(ErrorCode::kNonFinite,
              why + "; the run stops and saves nothing: checkpoints are as they were");
}

RunIdentity IdentityOf(const Session& session) {
  const Config& config = session.config();
  RunIdentity identity{ModelOptionsOf(config),   "",
                       config.data.shuffle_seed, 0,
                       ConfigToJson(config),     session.tuning_table()};
  identity.tokenizer = TokenizerHash(config);
  if (session.has_data()) {
    identity.data_fingerprint = session.DataFingerprint();
    identity.blend = session.data().BlendJson();
    identity.global_batch = session.batcher().layout().GlobalBatch();
  }
  return identity;
}

TrainResult Train(Session& session, const TrainOptions& options, const std::atomic<bool>& stop,
                  const std::vector<StepObserver*>& observers) {
  return TrainingLoop(session, options, stop, observers).Run();
}

}  // namespace millrace
