// What a run has to say to people besides its results. The library writes to no stream and keeps no
// logger of its own: whoever uses it hands in a Log, which decides where messages go. The program's
// is tools/cli/terminal/program_log.h. Without one (NoLog) nothing is said.
//
// Threads  Any, at any time.
// Errors   None: a message that cannot be kept is no reason to end a run.
// Time     A call never waits for a disk. It may wait for a terminal.
#pragma once

#include <string>
#include <vector>

namespace millrace {

// Ascending. kDebug is a line per phase and step, kTrace several per step.
enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError };

// Who has the message. It decides who shows it where ranks share a terminal. Each rank's own record
// has it in any case.
enum class LogScope {
  kAllRanks,  // every rank, in the same words, or rank 0 for the job: rank 0 shows it, at once
  // This rank, and others maybe or not. Warnings wait until the ranks meet, and are then said once,
  // with the ranks that have them (Meet). Other levels are shown at once, with the rank.
  kThisRank
};

class Log {
 public:
  virtual ~Log() = default;

  virtual void Write(LogLevel level, LogScope scope, const std::string& text) noexcept = 0;
  // Whether anybody gets messages of this level. What nobody gets need not be formatted.
  virtual bool Wants(LogLevel level) const noexcept = 0;

  // Meetings: where ranks exchange something anyway, each gives TakeWarnings() to all, and calls
  // Meet with what all gave. A rank that has taken its warnings must come to that meeting.
  virtual std::string TakeWarnings() noexcept { return {}; }  // "": there are none
  virtual void Meet([[maybe_unused]] const std::vector<std::string>& by_rank) noexcept {}

  void Info(LogScope scope, const std::string& text) noexcept {
    Write(LogLevel::kInfo, scope, text);
  }
  void Warning(LogScope scope, const std::string& text) noexcept {
    Write(LogLevel::kWarning, scope, text);
  }
};

// Says nothing. It has no state.
Log& NoLog() noexcept;

}  // namespace millrace
