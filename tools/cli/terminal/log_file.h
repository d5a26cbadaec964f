// One process's log as a file: lines with time, level and rank, of a bounded size.
//
// Disk     A thread of the file's own writes. Who logs never waits for the disk: a line that a slow
//          disk leaves no room for (kQueued lines wait) is dropped, and a line near the gap says
//          how many were. What a full disk refuses is lost; the next line is tried again.
// Size     At max_bytes rank_1.log becomes rank_1.1.log, in place of an earlier one, and an empty
//          rank_1.log begins.
// Pipes    A named pipe in the file's place is refused, as opening one may wait without end. A
//          device (/dev/null) is not.
// Death    Written line by line: a process that is killed leaves all but the lines of the last
//          moment.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/log.h"

namespace millrace {

// "2026-11-22T08:49:04.123Z warning rank 1  text", UTC; further lines of `text` are indented. No
// newline at its end.
std::string LogLine(std::chrono::system_clock::time_point time, LogLevel level,
                    const std::string& who, const std::string& text);

class LogFile {
 public:
  static constexpr size_t kQueued = 4096;
  struct Options {
    int64_t max_bytes = int64_t{4} << 20;
    // Called once, from another thread, when a line could not be written; `why` is the system's
    // word for it.
    std::function<void(const std::string& why)> on_trouble;
  };

  // Appends to the file, whose folder is made. `header` is the first line, of this file and of each
  // that follows when it is full. Error(kIo): it cannot be opened.
  LogFile(const std::string& path, const std::string& header, const Options& options);
  ~LogFile();  // writes what waits; a disk that hangs is given a few seconds
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  void Append(const std::string& line) noexcept;
  // Waits until all that was appended is written; false: not within `patience`.
  bool Drain(std::chrono::milliseconds patience) noexcept;

 private:
  struct State;
  std::shared_ptr<State>
      state_;  // also the thread's, which a disk that hangs may keep longer than this
  std::thread thread_;
};

// The number in the newest header of the file and the one before it, "start 3: ..."; 0: none.
int64_t StartsIn(const std::string& path);

// The last `count` lines since the newest header. None where that is older than `since`
// ("2026-11-22T08:49:04Z", or "" for any), or where there is no such file.
std::vector<std::string> LastLinesOf(const std::string& path, size_t count,
                                     const std::string& since);

// The last error among lines of a rank's log.
struct LoggedError {
  std::string time;
  std::string text;                 // as it was said
  std::vector<std::string> before;  // the lines before it
};
std::optional<LoggedError> LastErrorOf(std::vector<std::string> lines);

}  // namespace millrace
