// millrace launch: train under a supervisor, which starts it again from the
// newest checkpoint when it dies.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "runtime/api/backend.h"
#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/data/checkpoint/checkpoint_store.h"
#include "runtime/data/restart_log.h"
#include "runtime/data/run_lock.h"
#include "runtime/run/huggingface/exchange.h"
#include "tools/cli/launch/last_words.h"
#include "tools/cli/launch/metrics_watch.h"
#include "tools/cli/launch/this_program.h"
#include "tools/cli/terminal/program_log.h"
#include "tools/cli/verbs.h"
#include "tools/launch/job.h"
#include "tools/launch/job_end.h"
#include "tools/launch/launch_scratch.h"
#include "tools/launch/mpirun_words.h"
#include "tools/launch/rank_command.h"
#include "tools/launch/restart_policy.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll(20);
constexpr std::chrono::seconds kLastWords(2);  // for a slow reader, before the next attempt

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t NewestCheckpoint(const std::string& run_dir) {
  try {
    for (const CheckpointEntry& entry : ListCheckpoints(run_dir + "/checkpoints"))
      if (entry.usable()) return entry.step;
  } catch (const Error&) {  // a save that is going on removes old ones while they are looked at
  }
  return 0;
}

// One process, without an mpirun.
bool IsAlone(const LaunchArguments& arguments) {
  return arguments.mpirun.empty() && arguments.ranks.alone();
}

std::vector<std::string> CommandOf(const LaunchArguments& arguments, const Variables& variables,
                                   const std::string& token) {
  if (arguments.mpirun.empty() && !IsAlone(arguments))
    return MpirunCommand(arguments.ranks, variables, token, arguments.command);
  std::vector<std::string> command;
  std::istringstream words(arguments.mpirun);
  for (std::string word; words >> word;) command.push_back(word);
  command.push_back(OwnProgram());
  if (!IsAlone(arguments)) command.push_back(std::string(kAsRank) + token);
  command.insert(command.end(), arguments.command.begin(), arguments.command.end());
  return command;
}

JobKind KindOf(const LaunchArguments& arguments, const std::string& program) {
  if (IsAlone(arguments)) return {.leader = "", .host = HostName()};
  return {.leader = std::filesystem::path(program).filename().string(),
          .host = HostName(),
          .announces = arguments.mpirun.empty()};
}

std::map<std::string, std::string> EnvironmentOf(const LaunchArguments& arguments,
                                                 const std::string& scratch) {
  Variables variables = RankVariables();
  if (arguments.mpirun.empty() && arguments.ranks.hostfile.empty())  // others lack the folder
    for (const char* name : {"OMPI_MCA_orte_tmpdir_base", "OMPI_MCA_btl_vader_backing_directory"})
      if (std::getenv(name) == nullptr) variables[name] = scratch;
  variables[kLaunchVariable] = scratch;
  return variables;
}

// A run, supervised until it is done, or until there is no sense in starting it again.
class Supervisor {
 public:
  Supervisor(const LaunchArguments& arguments, const std::string& run_dir, ProgramLog& log)
      : arguments_(arguments),
        log_(log),
        run_dir_(run_dir),
        scratch_(run_dir),
        variables_(EnvironmentOf(arguments, scratch_.path())),
        command_(CommandOf(arguments, variables_, token_)),
        kind_(KindOf(arguments, command_.front())),
        policy_(arguments.max_restarts, NewestCheckpoint(run_dir)),
        stop_(arguments.grace_s),
        err_(STDERR_FILENO),
        out_(STDOUT_FILENO, [this](const std::string& why) {
          Say(fmt::format("standard output takes no more ({}); the job goes on", why));
        }) {}

  int Run() {
    if (scratch_.found_earlier()) {
      failed_at_ = Clock::now();
      Record({TimeNowUtc(), "the supervisor was killed", std::nullopt,
              MetricsWatch(run_dir_).step(), NewestCheckpoint(run_dir_), true});
      Say("an earlier supervisor of this run was killed; nothing of it is left");
    }
    const int code = RunAttempts();
    out_.Drain([] { return StopRequests() > 1; });
    return code;
  }

 private:
  int RunAttempts() {
    while (true) {
      if (StopRequests() > 0) {
        Say("stopped before the run was started");
        return ExitCode(ErrorCode::kPreempted);
      }
      AttemptEnd end = Attempt();
      scratch_.Clear();
      const auto noticed = Clock::now();
      const bool stopped = stop_.asked() || stop_.forced();
      if (stopped) end.verdict.lost_rank.reset();
      ShowLastWords(end.verdict, LogFolder(run_dir_), began_, log_);
      if (stopped) return Stopped(end.verdict);
      const Decision decision = policy_.After(end);
      if (end.verdict.reason.empty() || end.verdict.exit_code == ExitCode(ErrorCode::kPreempted))
        return end.verdict.exit_code;
      failed_at_ = noticed;
      Record({TimeNowUtc(), end.verdict.reason, raw_code_, end.step, end.checkpoint,
              decision.restart});
      SayWhatFollows(end, decision);
      if (!decision.restart) return end.verdict.exit_code;
      Pause(decision.wait_s);
    }
  }

  void SayWhatFollows(const AttemptEnd& end, const Decision& decision) const {
    const std::string what = end.trained
                                 ? fmt::format("{} after step {}", end.verdict.reason, end.step)
                                 : fmt::format("{} before its first step", end.verdict.reason);
    if (decision.restart) {
      Say(fmt::format(
          "{}; restart {} of at most {}, {}", what, policy_.restarts(), arguments_.max_restarts,
          end.checkpoint > 0 ? fmt::format("from the checkpoint of step {}", end.checkpoint)
                             : "from the beginning: there is no checkpoint"));
      return;
    }
    log_.Write(LogLevel::kError, LogScope::kAllRanks,
               decision.is_final
                   ? fmt::format("{}: not started again, as it would end so again", what)
                   : fmt::format("{}: not started again: {}; its exit code is {}", what,
                                 decision.stop, raw_code_));
  }

  void Say(const std::string& text) const { log_.Info(LogScope::kAllRanks, text); }
  void Warn(const std::string& text) const { log_.Warning(LogScope::kAllRanks, text); }

  AttemptEnd Attempt() {
    began_ = TimeNowUtc();
    int64_t from = NewestCheckpoint(run_dir_);
    MetricsWatch metrics(run_dir_);
    JobSetup setup;
    setup.command = command_;
    setup.environment = variables_;
    setup.out = &out_;
    setup.err = &err_;
    setup.rank_token = token_;
    setup.line_begins = "resuming after step ";
    Job job(setup);
    bool told = false;
    job.Run(stop_, [&] {
      if (StopRequests() > 0 && !std::exchange(told, true))
        Say("stopping: the run saves its state; a second signal ends it at once");
      if (!metrics.Poll()) return;
      if (metrics.step() > from) NextStep(from + 1);
      // The run finds damage that a list of checkpoints does not show, and takes the steps back
      // that an older one does not have.
      from = std::min(from, metrics.step());
    });
    const auto patience = Clock::now() + kLastWords;  // what is left waits for a slower reader
    for (Output* const output : {&out_, &err_})
      output->Drain([&] { return Clock::now() > patience || StopRequests() > 1; });
    raw_code_ = job.end().code;
    AttemptEnd end;
    end.verdict = Judge(job.end(), kind_, StopRequests());
    end.trained = metrics.changed() || job.saw_line();
    end.step = metrics.changed() ? std::max(metrics.step(), from) : from;
    end.checkpoint = NewestCheckpoint(run_dir_);
    return end;
  }

  // The first step that is done after a failure.
  void NextStep(int64_t step) {
    if (!failed_at_) return;
    const double seconds = SecondsSince(*failed_at_);
    failed_at_.reset();
    try {
      LogResumed(run_dir_, step, seconds);
    } catch (const Error& error) {
      Warn(error.what());
    }
  }

  void Record(const Failure& failure) {
    try {
      LogFailure(run_dir_, failure);
    } catch (const Error& error) {  // a full disk is no reason to give up a run
      Warn(error.what());
    }
  }

  // Exit code after a request to stop.
  int Stopped(const Verdict& verdict) const {
    if (stop_.forced()) {
      Say(StopRequests() > 1
              ? "stopped at once, on the second request; the last checkpoint is what there is"
              : fmt::format("the run did not stop within {} s (--grace-s) and was killed; the last "
                            "checkpoint is what there is",
                            arguments_.grace_s));
      return kStoppedAtOnce;
    }
    if (verdict.exit_code != 0 && verdict.exit_code != ExitCode(ErrorCode::kPreempted))
      Say(fmt::format("{} while it stopped; the last checkpoint is what there is", verdict.reason));
    return verdict.exit_code;
  }

  // Until a request to stop comes.
  static void Pause(double seconds) {
    for (const auto start = Clock::now(); SecondsSince(start) < seconds && StopRequests() == 0;)
      std::this_thread::sleep_for(kPoll);
  }

  const LaunchArguments& arguments_;
  ProgramLog& log_;
  const std::string run_dir_;
  LaunchScratch scratch_;
  const Variables variables_;
  const std::string token_ = NewRankToken();
  const std::vector<std::string> command_;
  const JobKind kind_;
  RestartPolicy policy_;
  StopSequence stop_;
  Output err_, out_;
  std::optional<Clock::time_point> failed_at_;  // and no step since
  std::string began_;                           // the attempt, as TimeNowUtc
  int raw_code_ = 0;                            // of the attempt, as shells write it
};

}  // namespace

int LaunchVerb(const LaunchArguments& arguments) {
  MR_REQUIRE(
      ErrorCode::kConfig, std::getenv("OMPI_COMM_WORLD_RANK") == nullptr,
      "launch starts mpirun itself (--ranks N, or --mpirun \"mpirun ...\"); start it without one");
  std::optional<int64_t> world;
  if (arguments.mpirun.empty()) world = arguments.ranks.ranks;
  const LoadedConfig loaded =
      LoadRunConfig(arguments.train.files, arguments.train.sets,
                    ConfigContext{.world = world, .has_cuda = CudaBuiltIn()});
  const Config& config = loaded.config;
  MR_REQUIRE(ErrorCode::kConfig, config.checkpoint.resume != CheckpointConfig::Resume::kNever,
             "checkpoint.resume is never: each restart would begin anew. launch takes auto (the "
             "default) and must; a new run.dir begins anew, too");
  CatchStopRequests();
  UnblockStopSignals();
  const RunLock lock(config.run.dir, std::chrono::seconds(1), "launch.lock");
  ProgramLog log("millrace launch", "launch");
  log.ShowFrom(config.run.log_level);
  if (!lock.warning().empty()) log.Warning(LogScope::kAllRanks, lock.warning());
  log.OpenFile(LogFolder(config.run.dir), "launch.log",
               fmt::format("supervisor, pid {} on {}: {}", ::getpid(), HostName(), CommandLine()));
  return Supervisor(arguments, config.run.dir, log).Run();
}

}  // namespace millrace
