#include "tools/cli/launch/launch_once.h"

#include <fmt/core.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/data/restart_log.h"
#include "tools/cli/launch/last_words.h"
#include "tools/cli/terminal/program_log.h"
#include "tools/launch/job.h"

namespace millrace {
namespace {

constexpr std::chrono::seconds kLastWords(2);  // for a slow reader of standard error

// Removed with what is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const char* const given = std::getenv("TMPDIR");
    const std::string place = given != nullptr && *given != '\0' ? given : "/tmp";
    std::string path = place + "/millrace.XXXXXX";
    MR_REQUIRE(ErrorCode::kIo, ::mkdtemp(path.data()) != nullptr,
               "no temporary folder can be made in {} (TMPDIR): {}", place,
               std::generic_category().message(errno));
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  // The program writes into this file which folder has its logs.
  std::string logs_note() const { return path_ + "/logs"; }

 private:
  std::string path_;
};

void Say(const std::string& text) {
  if (!text.empty()) std::fputs(fmt::format("millrace: {}.\n", text).c_str(), stderr);
}

int ExitCodeOf(const JobEnd& end, const JobKind& kind, const std::string& logs_note,
               const std::string& began) {
  Verdict verdict = Judge(end, kind, StopRequests());
  Say(StuckWords(end.stuck));
  if (StopRequests() > 0) verdict.lost_rank.reset();
  std::string logs;
  std::getline(std::ifstream(logs_note), logs);
  ProgramLog log;
  ShowLastWords(verdict, logs, began, log);
  Say(verdict.sentence);
  return verdict.exit_code;
}

bool HasSteps(const std::vector<std::string>& command) { return command.front() == "train"; }

int RunAlone(const std::vector<std::string>& command) {
  std::optional<TemporaryFolder> folder;
  JobSetup setup;
  try {
    folder.emplace();
    setup.environment["MILLRACE_LOGS_NOTE"] = folder->logs_note();
  } catch (const Error&) {  // without it nothing but the last lines of a crash is missing
  }
  setup.command = {OwnProgram()};
  setup.command.insert(setup.command.end(), command.begin(), command.end());
  setup.death_signal = SIGTERM;
  setup.reads_input = true;
  const std::string began = TimeNowUtc();
  StopSequence stop(std::nullopt);
  Job job(setup);
  job.Run(stop);
  return ExitCodeOf(job.end(), {.leader = "", .host = HostName(), .has_steps = HasSteps(command)},
                    setup.environment["MILLRACE_LOGS_NOTE"], began);
}

// 0: the ranks may start.
int Check(int ranks, const std::vector<std::string>& command, const std::string& logs_note) {
  JobSetup setup;
  setup.command = {OwnProgram()};
  setup.command.insert(setup.command.end(), command.begin(), command.end());
  setup.environment = {{"MILLRACE_PREFLIGHT", "1"},
                       {"MILLRACE_WORLD", std::to_string(ranks)},
                       {"MILLRACE_LOGS_NOTE", logs_note}};
  StopSequence stop(std::nullopt);
  Job job(setup);
  job.Run(stop);
  const int code = job.end().code;
  if (StopRequests() > 0) {
    Say("stopped before the ranks started; nothing to save");
    return ExitCode(ErrorCode::kPreempted);
  }
  if (!IsSignalCode(code)) return code;
  Say(fmt::format("the check of the configuration crashed ({})", SignalName(code - 128)));
  return ExitCode(ErrorCode::kInternal);
}

int RunRanks(const RankOptions& options, const std::vector<std::string>& command) {
  const TemporaryFolder folder;
  if (const int code = Check(options.ranks, command, folder.logs_note())) return code;

  Output err(STDERR_FILENO);
  Output out(STDOUT_FILENO, [&err](const std::string& why) {
    err.Add(fmt::format("millrace: standard output takes no more ({}); the job goes on.\n", why));
  });
  JobSetup setup;
  setup.environment = RankVariables();
  setup.rank_token = NewRankToken();
  setup.command = MpirunCommand(options, setup.environment, setup.rank_token, command);
  setup.death_signal = SIGTERM;  // with which mpirun clears up behind itself
  setup.out = &out;
  setup.err = &err;
  const std::string began = TimeNowUtc();
  StopSequence stop(std::nullopt);
  Job job(setup);
  job.Run(stop);
  const bool whole = out.Drain([] { return StopRequests() > 1; });
  const auto patience = std::chrono::steady_clock::now() + kLastWords;
  err.Drain([&] { return std::chrono::steady_clock::now() > patience; });
  const bool has_steps = HasSteps(command);
  const JobKind kind = {
      .leader = "mpirun", .host = HostName(), .announces = true, .has_steps = has_steps};
  const int code = ExitCodeOf(job.end(), kind, folder.logs_note(), began);
  const bool has_files = has_steps;  // which are its results
  return code == 0 && !whole && !has_files ? ExitCode(ErrorCode::kIo) : code;
}

}  // namespace

bool RunsAsRanks(const std::string& verb) {
  return verb == "train" || verb == "eval" || verb == "bench" || verb == "generate" ||
         verb == "score";
}

int LaunchOnce(const RankOptions& options, const std::vector<std::string>& command) {
  MR_REQUIRE(ErrorCode::kConfig, std::getenv("OMPI_COMM_WORLD_RANK") == nullptr,
             "-n starts mpirun itself; start it without one");
  CatchStopRequests();
  UnblockStopSignals();
  return options.alone() ? RunAlone(command) : RunRanks(options, command);
}

}  // namespace millrace
