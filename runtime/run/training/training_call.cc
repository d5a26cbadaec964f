// Where a call of Train begins, goes back and ends.
#include <chrono>

#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/record/roll_back_log.h"
#include "runtime/record/run_environment.h"
#include "runtime/record/run_history.h"
#include "runtime/run/data/known_documents.h"
#include "runtime/run/training/rebuilt_summary.h"
#include "runtime/run/training/training_loop.h"

namespace millrace {
namespace {

const char* BackendName(const PlanOptions& options) {
  return options.backend == Backend::kCuda ? "cuda" : "cpu";
}

bool GoesOn(const std::optional<ResumedRun>& resumed) { return resumed && !resumed->path.empty(); }

}  // namespace

std::optional<ResumedRun> TrainingLoop::Resume(ResumePolicy policy) {
  const PhaseScope phase = session_.Phase(RunPhase::kLoading);
  std::optional<ResumedRun> resumed =
      ResumeRun(session_.engine(), config_.run.dir, policy, identity_);
  if (resumed)
    for (const std::string& warning : resumed->warnings) Warn(warning);
  return resumed;
}

void TrainingLoop::Begin() {
  const std::optional<ResumedRun> resumed = Resume(config_.checkpoint.resume);
  const bool goes_on = GoesOn(resumed);
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
    const std::string said = WriteMissingSummary(session_, options_.machine, *resumed);
    if (!said.empty()) Warn(said);
    return;
  }
  // A log that cannot be read ends it before a file changes.
  if (goes_on) {
    RestoreGuard(resumed->progress.state);
    session_.GoOnWithData(resumed->progress.data);
  }
  const DataCheck check = CheckFiles();
  if (options_.on_begin) options_.on_begin();
  const RunEnvironment environment =
      Together(session_.engine().comms().world().HostAllGather(PackedText(session_.Describe())));
  if (leader()) {
    BeginRecord(resumed, environment);
    Remember(check, config_.run.dir, FileSystem::Posix());
  }
  if (!goes_on) RestoreGuard("{}");  // roll-backs of a run that is put aside are gone by now
  if (config_.guard.order_every > 0) session_.engine().LogOrder();
  saver_ = std::make_unique<Saver>(
      session_, identity_, options_.files != nullptr ? *options_.files : FileSystem::Posix(),
      CallbacksOfSaver());
  if (config_.train.eval_every > 0) {
    result_.eval_before = session_.Evaluate();
    Report(&StepObserver::OnEval, result_.first_step, *result_.eval_before);
  }
}

// Of large files what opening them left.
DataCheck TrainingLoop::CheckFiles() {
  const PhaseScope phase = session_.Phase(RunPhase::kReadingTokens);
  if (leader() && !config_.data.MasksDocuments() && FilesKnowDocuments(config_))
    Note(LogLevel::kInfo,
         "data.document_mask is false: Megatron's indices say where documents begin, and attention "
         "goes across these places. true stops it there");
  const auto start = std::chrono::steady_clock::now();
  const DataCheck check =
      CheckRunData(session_.data(), config_.run.dir, session_.engine().comms().world(), [&] {
        if (session_.marks() != nullptr) session_.marks()->Tick();
      });
  const double gigabytes = 1e-9 * double(check.bytes);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (check.remembered)
    Note(LogLevel::kInfo, "data: {:.1f} GB were found good by an earlier call", gigabytes);
  else if (check.bytes > 0)
    Note(LogLevel::kInfo, "data: {:.1f} GB read and found good in {:.1f} s", gigabytes,
         took.count());
  return check;
}

// Rank 0's.
void TrainingLoop::BeginRecord(const std::optional<ResumedRun>& resumed,
                               const RunEnvironment& environment) {
  const PhaseScope phase = session_.Phase(RunPhase::kReporting);
  const bool goes_on = GoesOn(resumed);
  if (goes_on) {
    for (const std::string& change : resumed->changes) Warn(change);
    Tell(&StepObserver::OnResume, result_.first_step, resumed->path);
  }
  // Nothing is loaded, and something is said or nothing was to be: an earlier run is put aside, its
  // lines with it.
  const bool anew = !goes_on && (resumed || config_.checkpoint.resume == ResumePolicy::kNever);
  files_ = std::make_unique<RunFiles>(
      config_, result_.first_step, anew ? OldMetrics::kSetAside : OldMetrics::kDropTail,
      options_.figures, [this](const std::string& text) { Warn(text); });
  observers_.push_back(files_.get());
  plan_stages_ = PlanStages(config_, session_.run());
  RecordedCall call =
      DescribeCall(config_, options_.origin, plan_stages_,
                   {result_.first_step, session_.world(), BackendName(session_.run().options)});
  call.environment = environment;
  call.environment.emplace_back("data fingerprint",
                                identity_.data_fingerprint);  // a path may hold others
  const std::string warning = RecordCall(config_.run.dir, call);
  if (!warning.empty()) Warn(warning);
  const std::string why = trace_.WhyNone(result_.first_step + 1, config_.train.steps);
  if (!why.empty()) Warn(why);
}

// Roll-backs may have been made since the checkpoint was saved; rank 0 knows.
void TrainingLoop::RestoreGuard(std::string state) {
  if (leader()) {
    const PhaseScope phase = session_.Phase(RunPhase::kReporting);
    state = StateAfterRollBacks(config_.run.dir, result_.first_step, state);
  }
  guard_.Restore(session_.engine().comms().world().HostBroadcast(state, 0));
}

// From a step whose numbers ask for it to the newest sound checkpoint: the step to be trained next.
int64_t TrainingLoop::GoBack() {
  for (; !waiting_.empty(); waiting_.pop_front())
    session_.engine().Collect();  // on CUDA, the next one
  trace_.Drop();
  saver_->Settle();
  RollBack made = *std::exchange(bad_, std::nullopt);
  const std::optional<ResumedRun> resumed = Resume(ResumePolicy::kAuto);
  const bool loaded = GoesOn(resumed);
  if (!loaded) {
    session_.InitWeights();
    session_.engine().SetCounters({});
  }
  made.to = loaded ? resumed->progress.step : 0;
  record_.GoBackTo(made.to, loaded ? resumed->progress.samples : 0);
  if (evaluated_ > made.to) {
    result_.eval_after.reset();
    evaluated_ = 0;
  }
  record_.Describe(result_);
  guard_.RolledBack(made, loaded ? resumed->progress.state : "{}");
  Note(LogLevel::kDebug, "step {}: {}: rolled back to step {}", made.from, made.why, made.to);
  Report(&StepObserver::OnRollBack, guard_.roll_backs(), guard_.State());
  Warn(fmt::format("step {}: {}: rolled back to {}; the data of {} left out ({} of {} roll-backs)",
                   made.from, made.why, loaded ? fmt::format("step {}", made.to) : "the beginning",
                   made.from == made.to + 1
                       ? fmt::format("step {} are", made.from)
                       : fmt::format("steps {} to {} are", made.to + 1, made.from),
                   guard_.roll_backs().size(), config_.guard.max_roll_backs));
  return made.to;
}

SaverCallbacks TrainingLoop::CallbacksOfSaver() {
  return {.on_saved =
              [this](int64_t step, const std::string& folder) {
                Tell(&StepObserver::OnCheckpoint, step, folder);
              },
          .on_warning = [this](const std::string& text) { Tell(&StepObserver::OnWarning, text); },
          // A checkpoint's steps have their lines, whatever happens to the machine.
          .before_publishing = [this] { files_->Sync(); }};
}

void TrainingLoop::Finish(double seconds) {
  const PhaseScope phase = session_.Phase(RunPhase::kEnding);
  const std::string param_hash = ParamHash(session_.engine());
  const std::string optimizer_hash = OptimizerHash(session_.engine());
  if (!leader()) return;
  if (!guard_.waiting().empty())
    Warn(
        fmt::format("{} batches that receive buffers had no room for have not run again: a call "
                    "with a larger train.steps runs them first",
                    guard_.waiting().size()));
  Summary summary = record_.Summarize(result_, seconds);
  summary.param_hash = param_hash;
  summary.optimizer_hash = optimizer_hash;
  summary.plan_stages = plan_stages_;
  summary.saves = saver_->totals();
  summary.waiting_batches = static_cast<int64_t>(guard_.waiting().size());
  Tell(&StepObserver::OnEnd, summary);
}

}  // namespace millrace
