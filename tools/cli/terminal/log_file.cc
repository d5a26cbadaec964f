#include "tools/cli/terminal/log_file.h"

#include <fmt/core.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/rotating_file_sink.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr std::chrono::seconds kLastPatience(3);
constexpr std::string_view kStart = "  start ";  // in a header, behind who
constexpr std::string_view kErrorLevel = "error   ", kIndent = "    ";

spdlog::level::level_enum LevelOf(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::off;
}

// spdlog's exceptions end with the system's words: "Failed opening file X for writing: Read-only
// file system".
std::string Cause(const std::string& message, const std::string& path) {
  size_t begin = message.find(path);
  if (begin != message.npos) begin = message.find(": ", begin + path.size());
  return begin == message.npos ? message : message.substr(begin + 2);
}

std::vector<std::string> LinesOf(const std::string& path) {
  std::vector<std::string> lines;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return lines;  // a device may have no end
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// "... rank 1  start 3: ...": 3; of other lines 0.
int64_t StartOf(const std::string& line) {
  const size_t found = line.find(kStart);
  if (line.empty() || line[0] < '0' || line[0] > '9' || found == line.npos) return 0;
  int64_t number = 0;
  size_t at = found + kStart.size();
  for (; at < line.size() && line[at] >= '0' && line[at] <= '9' && number < (int64_t{1} << 40);
       ++at)
    number = 10 * number + (line[at] - '0');
  return at < line.size() && line[at] == ':' ? number : 0;
}

}  // namespace

std::string LogLine(std::chrono::system_clock::time_point time, LogLevel level,
                    const std::string& who, const std::string& text) {
  thread_local spdlog::pattern_formatter formatter("%Y-%m-%dT%H:%M:%S.%eZ %-7l %n  %v",
                                                   spdlog::pattern_time_type::utc, "");
  std::string indented = text;
  for (size_t at = 0; (at = indented.find('\n', at)) != indented.npos; at += 1 + kIndent.size())
    indented.insert(at + 1, kIndent);
  spdlog::memory_buf_t line;
  formatter.format(
      spdlog::details::log_msg(time, spdlog::source_loc(), who, LevelOf(level), indented), line);
  return std::string(line.data(), line.size());
}

struct LogFile::State {
  std::string path, header;
  int64_t max_bytes = 0;
  std::unique_ptr<spdlog::sinks::rotating_file_sink_st>
      sink;                 // the thread's, once it runs; null: to be opened again
  bool in_trouble = false;  // the thread's

  std::mutex trouble_mutex;
  std::function<void(const std::string&)> on_trouble;

  std::mutex mutex;  // never held while the disk is used
  std::condition_variable changed;
  std::deque<std::string> waiting;
  int64_t dropped = 0, appended = 0, written = 0;
  bool ending = false;

  void Open() {
    spdlog::file_event_handlers events;
    // Opening a pipe would wait for a reader, and a rank with it.
    events.before_open = [](const spdlog::filename_t& name) {
      std::error_code ignored;
      if (std::filesystem::is_fifo(name, ignored)) throw std::runtime_error("Not a regular file");
    };
    events.after_open = [this](const spdlog::filename_t&, std::FILE* file) {
      std::fputs((header + "\n").c_str(), file);
      std::fflush(file);  // where the disk refuses it, it refuses the next line, too
    };
    sink = std::make_unique<spdlog::sinks::rotating_file_sink_st>(
        path, static_cast<size_t>(max_bytes), 1, false, events);
    sink->set_pattern("%v");
  }

  void Put(const std::string& line) {
    try {
      if (!sink) Open();
      sink->log(spdlog::details::log_msg(spdlog::string_view_t(), spdlog::level::info, line));
      sink->flush();
    } catch (const std::exception& error) {
      sink.reset();  // one that could not open the next file writes to a null one
      if (std::exchange(in_trouble, true)) return;
      const std::lock_guard lock(trouble_mutex);
      if (on_trouble) on_trouble(Cause(error.what(), path));
    }
  }

  void Run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return ending || !waiting.empty(); });
      if (waiting.empty()) return;
      const std::string line = std::move(waiting.front());
      waiting.pop_front();
      const int64_t lost = std::exchange(dropped, 0);
      lock.unlock();
      Put(line);
      if (lost > 0)
        Put(LogLine(
            std::chrono::system_clock::now(), LogLevel::kWarning, "log",
            fmt::format("{} lines are missing soon after this: the disk was too slow", lost)));
      lock.lock();
      ++written;
      changed.notify_all();
    }
  }
};

LogFile::LogFile(const std::string& path, const std::string& header, const Options& options)
    : state_(std::make_shared<State>()) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  MR_REQUIRE(ErrorCode::kIo, !error, "{}", error.message());
  state_->path = path;
  state_->header = header;
  state_->max_bytes = options.max_bytes;
  state_->on_trouble = options.on_trouble;
  try {
    state_->Open();
  } catch (const std::exception& failure) {
    throw Error(ErrorCode::kIo, Cause(failure.what(), path));
  }
  thread_ = std::thread([state = state_] { state->Run(); });
}

LogFile::~LogFile() {
  const bool written = Drain(kLastPatience);
  {
    const std::lock_guard lock(state_->mutex);
    state_->ending = true;
    state_->changed.notify_all();
  }
  if (written) {
    thread_.join();
    return;
  }
  const std::lock_guard lock(state_->trouble_mutex);
  state_->on_trouble = nullptr;
  thread_.detach();
}

void LogFile::Append(const std::string& line) noexcept {
  try {
    const std::lock_guard lock(state_->mutex);
    if (state_->waiting.size() >= kQueued) {
      ++state_->dropped;
      return;
    }
    state_->waiting.push_back(line);
    ++state_->appended;
    state_->changed.notify_all();
  } catch (const std::exception&) {  // no memory: no line
  }
}

bool LogFile::Drain(std::chrono::milliseconds patience) noexcept {
  std::unique_lock lock(state_->mutex);
  const int64_t all = state_->appended;
  return state_->changed.wait_for(lock, patience, [&] { return state_->written >= all; });
}

int64_t StartsIn(const std::string& path) {
  const std::filesystem::path whole(path);
  const std::string older =
      (whole.parent_path() / whole.stem()).string() + ".1" + whole.extension().string();
  int64_t newest = 0;
  for (const std::string& name : {older, path})
    for (const std::string& line : LinesOf(name)) newest = std::max(newest, StartOf(line));
  return newest;
}

std::vector<std::string> LastLinesOf(const std::string& path, size_t count,
                                     const std::string& since) {
  std::vector<std::string> lines = LinesOf(path);
  size_t begin = lines.size();
  while (begin > 0 && StartOf(lines[begin - 1]) == 0) --begin;
  constexpr size_t kSeconds =
      sizeof "2026-11-22T08:49:04" - 1;  // so much of two times compares as text
  if (begin == 0 || lines[begin - 1].substr(0, kSeconds) < since.substr(0, kSeconds)) return {};
  lines.erase(lines.begin(),
              lines.begin() + static_cast<std::ptrdiff_t>(
                                  std::max(begin, lines.size() - std::min(lines.size(), count))));
  return lines;
}

std::optional<LoggedError> LastErrorOf(std::vector<std::string> lines) {
  for (size_t i = lines.size(); i-- > 0;) {
    const std::string& line = lines[i];
    const size_t level = line.find(' ') + 1, who = line.find(kErrorLevel);
    if (line.empty() || line[0] == ' ' || who != level) continue;
    const size_t text = line.find("  ", who + kErrorLevel.size());
    if (text == line.npos) continue;
    LoggedError error = {line.substr(0, level - 1), line.substr(text + 2), {}};
    for (size_t next = i + 1; next < lines.size() && lines[next].starts_with(kIndent); ++next)
      error.text += "\n" + lines[next].substr(kIndent.size());
    lines.resize(i);
    error.before = std::move(lines);
    return error;
  }
  return std::nullopt;
}

}  // namespace millrace
