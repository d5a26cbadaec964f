#include "tools/cli/terminal/program_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr std::chrono::seconds kLastPatience(1);

// The error itself tells all that there is to know, or is another rank's.
bool ShowsLines(int exit_code) {
  for (const ErrorCode code : {ErrorCode::kConfig, ErrorCode::kData, ErrorCode::kCheckpoint,
                               ErrorCode::kDoesNotFit, ErrorCode::kPeerLost, ErrorCode::kPreempted})
    if (exit_code == ExitCode(code)) return false;
  return true;
}

}  // namespace

ProgramLog::ProgramLog(std::string name, std::string who, std::FILE* terminal)
    : name_(std::move(name)), who_(std::move(who)), terminal_(terminal) {}

ProgramLog::~ProgramLog() {
  std::unique_ptr<LogFile> file;
  {
    const std::lock_guard lock(mutex_);
    file = std::move(file_);
  }
  file.reset();  // it may have a last warning
  for (const std::string& text : warnings_.Take()) Show(LogLevel::kWarning, Own(text));
}

void ProgramLog::BeRank(int rank, int world) {
  rank_ = rank;
  world_ = world;
  who_ = fmt::format("rank {}", rank);
}

void ProgramLog::ShowFrom(LogLevel level) { show_from_ = level; }

void ProgramLog::BeforeLine(std::function<void()> call) {
  const std::lock_guard lock(line_mutex_);
  before_line_ = std::move(call);
}

void ProgramLog::OpenFile(const std::string& folder, const std::string& file,
                          const std::string& what, const LogFile::Options& options) {
  const std::string path = folder + "/" + file;
  LogFile::Options own = options;
  own.on_trouble = [this, folder, given = options.on_trouble](const std::string& why) {
    Write(LogLevel::kWarning, LogScope::kThisRank,
          fmt::format("lines of the log in {} are lost: {}", folder, why));
    if (given) given(why);
  };
  try {
    const std::string header = LogLine(std::chrono::system_clock::now(), LogLevel::kInfo, who_,
                                       fmt::format("start {}: {}", StartsIn(path) + 1, what));
    auto opened = std::make_unique<LogFile>(path, header, own);
    const std::lock_guard lock(mutex_);
    for (const std::string& line : last_lines_) opened->Append(line);
    path_ = path;
    file_ = std::move(opened);
  } catch (const std::exception& error) {
    Write(LogLevel::kWarning, LogScope::kThisRank,
          fmt::format("no log is kept in {}: {}", folder, error.what()));
  }
}

void ProgramLog::Write(LogLevel level, LogScope scope, const std::string& text) noexcept {
  try {
    const bool kept = ended_ && level == LogLevel::kError;  // LastWords has it
    if (Wants(level) && !kept) Keep(level, text);
    if (level < show_from_) return;
    if (scope == LogScope::kThisRank && level == LogLevel::kWarning && world_ > 1)
      warnings_.Add(text);
    else if (scope == LogScope::kThisRank)
      Show(level, Own(text));
    else if (rank_ == 0)
      Show(level, text);
  } catch (const std::exception&) {  // no memory: nothing is said
  }
}

bool ProgramLog::Wants(LogLevel level) const noexcept {
  return level >= std::min(show_from_, LogLevel::kDebug);
}

std::string ProgramLog::TakeWarnings() noexcept {
  try {
    return PackWarnings(warnings_.Take());
  } catch (const std::exception&) {
    return {};
  }
}

void ProgramLog::Meet(const std::vector<std::string>& by_rank) noexcept {
  try {
    if (rank_ != 0) return;
    for (const std::string& text : WarningsTogether(by_rank)) Show(LogLevel::kWarning, text);
  } catch (const std::exception&) {
  }
}

void ProgramLog::LastWords(const std::string& reason, int exit_code) noexcept {
  if (ended_.exchange(true)) return;
  try {
    for (const std::string& text : warnings_.Take()) Show(LogLevel::kWarning, Own(text));
    std::vector<std::string> lines;
    std::string path;
    {
      const std::lock_guard lock(mutex_);
      lines.assign(
          last_lines_.end() - static_cast<std::ptrdiff_t>(std::min(last_lines_.size(), kLastLines)),
          last_lines_.end());
      path = path_;
    }
    Keep(LogLevel::kError, reason);
    if (ShowsLines(exit_code)) ShowLinesOfRank(rank_, path, lines);
    LogFile* file = nullptr;
    {
      const std::lock_guard lock(mutex_);
      file = file_.get();
    }
    if (file != nullptr) file->Drain(kLastPatience);
  } catch (const std::exception&) {
  }
}

void ProgramLog::ShowLinesOfRank(int rank, const std::string& path,
                                 const std::vector<std::string>& lines) noexcept {
  try {
    if (lines.empty()) return;
    std::string block = fmt::format("{}: the last lines of rank {}{}:\n", name_, rank,
                                    path.empty() ? "" : " (" + path + ")");
    for (const std::string& line : lines) block += "  " + line + "\n";
    std::fwrite(block.data(), 1, block.size(), terminal_);  // at once, so that ranks do not mix
    std::fflush(terminal_);
  } catch (const std::exception&) {
  }
}

void ProgramLog::Keep(LogLevel level, const std::string& text) {
  const std::string line = LogLine(std::chrono::system_clock::now(), level, who_, text);
  constexpr size_t kKept = 10 * kLastLines;  // until there is a file
  const std::lock_guard lock(mutex_);
  last_lines_.push_back(line);
  while (last_lines_.size() > (file_ ? kLastLines : kKept)) last_lines_.pop_front();
  if (file_) file_->Append(line);
}

void ProgramLog::Show(LogLevel level, const std::string& text) {
  std::string line = name_ + ": ";
  if (level <= LogLevel::kDebug) line += level == LogLevel::kDebug ? "debug: " : "trace: ";
  if (level == LogLevel::kWarning) line += "warning: ";
  line += text + "\n";
  if (!ended_) {
    const std::unique_lock lock(line_mutex_, std::try_to_lock);
    if (lock.owns_lock() && before_line_) before_line_();
  }
  std::fwrite(line.data(), 1, line.size(), terminal_);
  std::fflush(terminal_);
}

std::string ProgramLog::Own(const std::string& text) const {
  return world_ > 1 ? fmt::format("rank {}: {}", rank_, text) : text;
}

std::string LogFolder(const std::string& run_dir) { return run_dir + "/logs"; }

std::string LogName(int rank) { return fmt::format("rank_{}.log", rank); }

void NoteLogFolder(const std::string& run_dir) noexcept {
  const char* const note = std::getenv("MILLRACE_LOGS_NOTE");
  if (note != nullptr) std::ofstream(note) << LogFolder(run_dir) << "\n";
}

}  // namespace millrace
