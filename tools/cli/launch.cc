// millrace launch: train under a supervisor, which starts it again from the
// newest checkpoint when it dies.
#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <thread>

#include "runtime/api/exchange.h"
#include "runtime/base/error.h"
#include "runtime/data/checkpoint_store.h"
#include "runtime/data/restart_log.h"
#include "runtime/data/run_lock.h"
#include "tools/cli/backend.h"
#include "tools/cli/command.h"
#include "tools/cli/host_facts.h"
#include "tools/cli/launch_scratch.h"
#include "tools/cli/metrics_watch.h"
#include "tools/cli/restart_policy.h"
#include "tools/cli/supervised_job.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll(20);
constexpr std::chrono::seconds kAskAgain(1);  // mpirun drops a signal when its ranks do not run yet
constexpr int kStoppedAtOnce = 143;
constexpr const char* kTheRun = "the run";  // without an mpirun

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

std::vector<std::string> CommandOf(const LaunchArguments& arguments) {
  std::vector<std::string> command;
  if (!arguments.mpirun.empty()) {
    std::istringstream words(arguments.mpirun);
    for (std::string word; words >> word;) command.push_back(word);
  } else if (arguments.ranks > 1) {
    command = {"mpirun",
               "-n",
               std::to_string(arguments.ranks),
               "--oversubscribe",
               "--bind-to",
               "none",
               "--mca",
               "mpi_yield_when_idle",
               "1"};
  }
  command.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  command.insert(command.end(), arguments.command.begin(), arguments.command.end());
  return command;
}

// As tools/lib/launch.sh has it; what the user has set stays.
std::map<std::string, std::string> EnvironmentOf(const LaunchArguments& arguments,
                                                 const std::string& scratch) {
  std::map<std::string, std::string> variables;
  const auto set = [&](const char* name, const std::string& value) {
    if (std::getenv(name) == nullptr) variables[name] = value;
  };
  set("OPENBLAS_NUM_THREADS", "1");
  set("OMP_NUM_THREADS", "1");
  set("MILLRACE_STDOUT_TTY", ::isatty(STDOUT_FILENO) == 1 ? "1" : "0");
  set("MILLRACE_STDERR_TTY", ::isatty(STDERR_FILENO) == 1 ? "1" : "0");
  winsize size = {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    set("COLUMNS", std::to_string(size.ws_col));
  set("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
  set("OMPI_MCA_oob_tcp_keepalive_time", "6");
  set("OMPI_MCA_oob_tcp_keepalive_intvl", "3");
  set("OMPI_MCA_oob_tcp_keepalive_probes", "3");
  if (::geteuid() == 0) {
    set("OMPI_ALLOW_RUN_AS_ROOT", "1");
    set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  }
  if (arguments.mpirun.empty()) {  // of this host alone; others lack the folder
    set("OMPI_MCA_orte_tmpdir_base", scratch);
    set("OMPI_MCA_btl_vader_backing_directory", scratch);
  }
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
        command_(CommandOf(arguments)),
        leader_(command_.size() > arguments.command.size() + 1
                    ? std::filesystem::path(command_.front()).filename().string()
                    : kTheRun),
        scratch_(run_dir),
        policy_(leader_, arguments.max_restarts, NewestCheckpoint(run_dir)) {}

  int Run() {
    if (scratch_.found_earlier()) {
      failed_at_ = Clock::now();
      Record({TimeNowUtc(), "the supervisor was killed", std::nullopt,
              MetricsWatch(run_dir_).step(), NewestCheckpoint(run_dir_), true});
      Say("an earlier supervisor of this run was killed; nothing of it is left");
    }
    while (true) {
      if (StopRequests() > 0) {
        Say("stopped before the run was started");
        return ExitCode(ErrorCode::kPreempted);
      }
      const AttemptEnd end = Attempt();
      scratch_.Clear();
      const auto noticed = Clock::now();
      if (stops_ > 0) return Stopped(end);
      ShowLostRank(end);
      const Decision decision = policy_.After(end);
      if (decision.reason.empty() || decision.exit_code == ExitCode(ErrorCode::kPreempted))
        return decision.exit_code;
      failed_at_ = noticed;
      Record({TimeNowUtc(), decision.reason, end.code, end.step, end.checkpoint, decision.restart});
      const std::string what = end.trained
                                   ? fmt::format("{} after step {}", decision.reason, end.step)
                                   : fmt::format("{} before its first step", decision.reason);
      if (!decision.restart) {
        log_.Write(LogLevel::kError, LogScope::kAllRanks,
                   decision.stop.empty()
                       ? fmt::format("{}: not started again, as it would end so again", what)
                       : fmt::format("{}: not started again: {}; its exit code is {}", what,
                                     decision.stop, end.code));
        return decision.exit_code;
      }
      Say(fmt::format(
          "{}; restart {} of at most {}, {}", what, policy_.restarts(), arguments_.max_restarts,
          end.checkpoint > 0 ? fmt::format("from the checkpoint of step {}", end.checkpoint)
                             : "from the beginning: there is no checkpoint"));
      Pause(decision.wait_s);
    }
  }

 private:
  void Say(const std::string& text) const { log_.Info(LogScope::kAllRanks, text); }
  void Warn(const std::string& text) const { log_.Warning(LogScope::kAllRanks, text); }

  // A rank that a signal ended could not show its last lines itself.
  void ShowLostRank(const AttemptEnd& end) const {
    constexpr int kSignalBase = 128;
    const bool alone = leader_ == kTheRun;
    if (end.code <= kSignalBase || end.leader_lost != alone || (!alone && !lost_rank_)) return;
    const int rank = alone ? 0 : *lost_rank_;
    const std::string path = LogFolder(run_dir_) + "/" + LogName(rank);
    log_.ShowLinesOfRank(rank, path, LastLinesOf(path, ProgramLog::kLastLines, began_));
  }

  AttemptEnd Attempt() {
    began_ = TimeNowUtc();
    int64_t from = NewestCheckpoint(run_dir_);
    MetricsWatch metrics(run_dir_);
    SupervisedJob job(command_, EnvironmentOf(arguments_, scratch_.path()), "resuming after step ");
    std::optional<Clock::time_point> asked;
    const auto look = [&] {
      if (!metrics.Poll()) return;
      if (metrics.step() > from) NextStep(from + 1);
      // The run finds damage that a list of checkpoints does not show, and takes the steps back
      // that an older one does not have.
      from = std::min(from, metrics.step());
    };
    while (!job.Wait(kPoll)) {
      look();
      PassOn(job, asked);
    }
    look();
    lost_rank_ = job.words().lost_rank();
    AttemptEnd end;
    end.code = job.code();
    end.leader_lost = job.leader_lost();
    end.hung = job.hung();
    end.lost_host = job.words().lost_host();
    end.trained = metrics.changed() || job.SawLine();
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

  // The first request asks the run to save and stop, until it has understood; the second ends it.
  void PassOn(SupervisedJob& job, std::optional<Clock::time_point>& asked) {
    if (StopRequests() == 0) return;
    if (stops_ == 0) {
      first_stop_ = Clock::now();
      Say("stopping: the run saves its state; a second signal ends it at once");
    }
    stops_ = StopRequests();
    if (stops_ > 1 || SecondsSince(first_stop_) > arguments_.grace_s) {
      killed_ = true;
      job.Kill();
    } else if (!asked || Clock::now() - *asked >= kAskAgain) {
      asked = Clock::now();
      job.Signal(SIGUSR1);
    }
  }

  // Exit code after a request to stop.
  int Stopped(const AttemptEnd& end) const {
    if (killed_) {
      Say(StopRequests() > 1
              ? "stopped at once, on the second request; the last checkpoint is what there is"
              : fmt::format("the run did not stop within {} s (--grace-s) and was killed; the last "
                            "checkpoint is what there is",
                            arguments_.grace_s));
      return kStoppedAtOnce;
    }
    constexpr int kAskedTooEarly = 128 + SIGUSR1;  // nothing had begun that could be saved
    if (end.code == kAskedTooEarly) return ExitCode(ErrorCode::kPreempted);
    RestartPolicy last(leader_, 0, 0);
    const Decision decision = last.After(end);
    if (decision.exit_code != 0 && decision.exit_code != ExitCode(ErrorCode::kPreempted))
      Say(fmt::format("{} while it stopped; the last checkpoint is what there is",
                      decision.reason));
    return decision.exit_code;
  }

  // Until a request to stop comes.
  static void Pause(double seconds) {
    for (const auto start = Clock::now(); SecondsSince(start) < seconds && StopRequests() == 0;)
      std::this_thread::sleep_for(kPoll);
  }

  const LaunchArguments& arguments_;
  ProgramLog& log_;
  const std::string run_dir_;
  const std::vector<std::string> command_;
  const std::string leader_;
  LaunchScratch scratch_;
  RestartPolicy policy_;
  std::optional<Clock::time_point> failed_at_;  // and no step since
  std::string began_;                           // the attempt, as TimeNowUtc
  std::optional<int> lost_rank_;                // of the attempt
  int stops_ = 0;
  Clock::time_point first_stop_;
  bool killed_ = false;
};

}  // namespace

int LaunchVerb(const LaunchArguments& arguments) {
  MR_REQUIRE(
      ErrorCode::kConfig, std::getenv("OMPI_COMM_WORLD_RANK") == nullptr,
      "launch starts mpirun itself (--ranks N, or --mpirun \"mpirun ...\"); start it without one");
  std::optional<int64_t> world;
  if (arguments.mpirun.empty()) world = arguments.ranks;
  const LoadedConfig loaded =
      LoadRunConfig(arguments.train.files, arguments.train.sets,
                    ConfigContext{.world = world, .has_cuda = CudaBuiltIn()});
  const Config& config = loaded.config;
  MR_REQUIRE(ErrorCode::kConfig, config.checkpoint.resume != CheckpointConfig::Resume::kNever,
             "checkpoint.resume is never: each restart would begin anew. launch takes auto (the "
             "default) and must; a new run.dir begins anew, too");
  CatchStopRequests();
  const RunLock lock(config.run.dir, std::chrono::seconds(1), "launch.lock");
  ProgramLog log("millrace launch", "launch");
  log.ShowFrom(config.run.log_level);
  if (!lock.warning().empty()) log.Warning(LogScope::kAllRanks, lock.warning());
  log.OpenFile(LogFolder(config.run.dir), "launch.log",
               fmt::format("supervisor, pid {} on {}: {}", ::getpid(), HostName(), CommandLine()));
  return Supervisor(arguments, config.run.dir, log).Run();
}

}  // namespace millrace
