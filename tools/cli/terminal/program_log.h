// The program's Log (runtime/base/log.h): the terminal, and run.dir/logs/rank_N.log.
//
// Terminal Standard error, messages from run.log_level on, as a person reads them:
//            millrace: weights of step 20 from ...                info
//            millrace: warning: ranks 1, 3-5: no log is kept ...  warning
//            millrace: rank 1: ...                                error
//            millrace: debug: rank 1: ...                         debug, trace
// File     Messages from debug on (from trace on where run.log_level is trace), with time, level
//          and rank. Only what a verb opens with OpenFile; what was said before is in it, too.
// Meetings Warnings of some ranks are said by rank 0 at the next meeting. What is left in the end
//          each rank says for itself.
// End      LastWords shows the last lines, so that an error is not all that is known of a rank.
#pragma once

#include <atomic>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/base/rank_warnings.h"
#include "tools/cli/terminal/log_file.h"

namespace millrace {

class ProgramLog final : public Log {
 public:
  static constexpr size_t kLastLines = 20;  // that a failing rank shows

  // `name` begins each line of the terminal; `who` is in each line of the file.
  explicit ProgramLog(std::string name = "millrace", std::string who = "rank 0",
                      std::FILE* terminal = stderr);
  ~ProgramLog() override;
  ProgramLog(const ProgramLog&) = delete;
  ProgramLog& operator=(const ProgramLog&) = delete;

  // Before there are other threads. Until then this is rank 0 of 1, which shows messages from info
  // on.
  void BeRank(int rank, int world);
  void ShowFrom(LogLevel level);
  // Called before a message is written to the terminal, on any thread; not before LastWords, which
  // may not wait for standard output.
  void BeforeLine(std::function<void()> call);

  // From here on what is said is appended to `folder`/`file`, behind a line with the number of this
  // start and `what` (who, and which command). A folder that cannot be written is a warning of this
  // rank. At most once.
  void OpenFile(const std::string& folder, const std::string& file, const std::string& what,
                const LogFile::Options& options = {});

  void Write(LogLevel level, LogScope scope, const std::string& text) noexcept override;
  bool Wants(LogLevel level) const noexcept override;
  std::string TakeWarnings() noexcept override;
  void Meet(const std::vector<std::string>& by_rank) noexcept override;

  // Another process's last lines, which it cannot show itself.
  void ShowLinesOfRank(int rank, const std::string& path,
                       const std::vector<std::string>& lines) noexcept;

  // Before the process ends with an error, which the caller says afterwards: puts `reason` into the
  // file, and shows the last lines, unless `exit_code` says that the error tells it all (a
  // configuration, data, a request to stop) or that another rank failed. Takes a second at most,
  // whatever the disk does. Any thread; only the first call does anything.
  void LastWords(const std::string& reason, int exit_code) noexcept;

 private:
  void Keep(LogLevel level, const std::string& text);
  void Show(LogLevel level, const std::string& text);
  std::string Own(const std::string& text) const;

  const std::string name_;
  std::string who_;
  std::FILE* const terminal_;
  int rank_ = 0, world_ = 1;
  LogLevel show_from_ = LogLevel::kInfo;
  std::mutex line_mutex_;
  std::function<void()> before_line_;
  RankWarnings warnings_;
  std::atomic<bool> ended_ = false;

  std::mutex mutex_;  // of what follows; held neither for the disk nor for the terminal
  std::deque<std::string> last_lines_;
  std::string path_;  // of the file
  std::unique_ptr<LogFile> file_;
};

// run.dir's folder of logs, and the file of a rank in it.
std::string LogFolder(const std::string& run_dir);
std::string LogName(int rank);

// Tells the launcher that started this process where logs are: MILLRACE_LOGS_NOTE names a file that
// it reads. Without the variable, nothing.
void NoteLogFolder(const std::string& run_dir) noexcept;

}  // namespace millrace
