// Where messages go: terminal, file, other ranks.
#include "tools/cli/terminal/program_log.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "comm/local/run_ranks.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using Lines = std::vector<std::string>;
constexpr LogScope kAll = LogScope::kAllRanks, kThis = LogScope::kThisRank;

Lines LinesIn(const std::string& text) {
  Lines lines;
  for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
  }
  return lines;
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "log.XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A terminal that can be read back.
class Terminal {
 public:
  Terminal() : file_(std::tmpfile()) {}
  ~Terminal() { std::fclose(file_); }
  std::FILE* get() const { return file_; }
  Lines lines() const {
    std::rewind(file_);
    std::string text;
    for (int c; (c = std::fgetc(file_)) != EOF;) text += static_cast<char>(c);
    std::fseek(file_, 0, SEEK_END);
    return LinesIn(text);
  }

 private:
  std::FILE* file_;
};

// Without its time.
std::string Rest(const std::string& line) {
  static const std::regex kTime(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z )");
  std::smatch match;
  if (!std::regex_search(line, match, kTime, std::regex_constants::match_continuous))
    return "no time: " + line;
  return match.suffix();
}

Lines Rests(const std::string& path) {
  Lines lines = LinesIn(TextOf(path));
  std::transform(lines.begin(), lines.end(), lines.begin(), Rest);
  return lines;
}

void SayAll(ProgramLog& log) {
  log.Write(LogLevel::kTrace, kAll, "t");
  log.Write(LogLevel::kDebug, kThis, "d");
  log.Write(LogLevel::kInfo, kAll, "i");
  log.Write(LogLevel::kWarning, kAll, "w");
  log.Write(LogLevel::kError, kThis, "e");
}

TEST_CASE("a line has time in UTC, level and rank", "[cli][log]") {
  const auto time =
      std::chrono::system_clock::time_point(std::chrono::milliseconds(1'800'000'000'007));
  REQUIRE(LogLine(time, LogLevel::kWarning, "rank 1", "full") ==
          "2027-01-15T08:00:00.007Z warning rank 1  full");
  REQUIRE(LogLine(time, LogLevel::kInfo, "rank 12", "two\nlines") ==
          "2027-01-15T08:00:00.007Z info    rank 12  two\n    lines");
}

TEST_CASE("the terminal shows messages from the asked level on", "[cli][log]") {
  const Lines all = {"millrace: trace: t", "millrace: debug: rank 0: d", "millrace: i",
                     "millrace: warning: w", "millrace: rank 0: e"};
  const LogLevel levels[] = {LogLevel::kTrace, LogLevel::kDebug, LogLevel::kInfo,
                             LogLevel::kWarning, LogLevel::kError};
  for (size_t i = 0; i < std::size(levels); ++i) {
    Terminal terminal;
    ProgramLog log("millrace", "rank 0", terminal.get());
    log.BeRank(0, 3);
    log.ShowFrom(levels[i]);
    SayAll(log);
    REQUIRE(terminal.lines() == Lines(all.begin() + static_cast<std::ptrdiff_t>(i), all.end()));
    REQUIRE(log.Wants(LogLevel::kDebug));
    REQUIRE(log.Wants(LogLevel::kTrace) == (i == 0));
  }
}

TEST_CASE("the file has all from debug on, whatever the terminal shows", "[cli][log]") {
  const Folder folder;
  Terminal terminal;
  {
    ProgramLog log("millrace", "rank 0", terminal.get());
    log.BeRank(2, 3);
    log.ShowFrom(LogLevel::kError);
    log.Write(LogLevel::kDebug, kAll, "before there was a file");
    log.OpenFile(folder / "logs", "rank_2.log", "rank 2 of 3: millrace train");
    SayAll(log);
  }
  REQUIRE(Rests(folder / "logs/rank_2.log") ==
          Lines{"info    rank 2  start 1: rank 2 of 3: millrace train",
                "debug   rank 2  before there was a file", "debug   rank 2  d", "info    rank 2  i",
                "warning rank 2  w", "error   rank 2  e"});
  REQUIRE(terminal.lines() == Lines{"millrace: rank 2: e"});
}

TEST_CASE("a rank other than 0 shows what is its own", "[cli][log]") {
  Terminal terminal;
  {
    ProgramLog log("millrace", "rank 0", terminal.get());
    log.BeRank(1, 3);
    log.Info(kAll, "all");
    log.Info(kThis, "own");
    log.Warning(kAll, "all");
    log.Warning(kThis, "own");
    REQUIRE(terminal.lines() == Lines{"millrace: rank 1: own"});
  }  // no meeting came
  REQUIRE(terminal.lines() == Lines{"millrace: rank 1: own", "millrace: warning: rank 1: own"});
}

TEST_CASE("ranks that meet say a warning once", "[cli][log]") {
  const int world = 3;
  std::array<Terminal, world> terminals;
  RunRanks(world, [&](Communicator& comm) {
    const auto rank = static_cast<size_t>(comm.rank());
    ProgramLog log("millrace", "rank 0", terminals[rank].get());
    log.BeRank(comm.rank(), world);
    log.Warning(kThis, "disk full");
    if (rank > 0) log.Warning(kThis, "hot");
    if (rank == 1) log.Warning(kThis, "slow");
    for (int meeting = 0; meeting < 2; ++meeting) log.Meet(comm.HostAllGather(log.TakeWarnings()));
  });
  REQUIRE(terminals[0].lines() == Lines{"millrace: warning: disk full",
                                        "millrace: warning: ranks 1-2: hot",
                                        "millrace: warning: rank 1: slow"});
  REQUIRE(terminals[1].lines().empty());
  REQUIRE(terminals[2].lines().empty());
}

TEST_CASE("a later start appends behind a numbered line", "[cli][log]") {
  const Folder folder;
  for (const char* what : {"first", "second"}) {
    Terminal terminal;
    ProgramLog log("millrace", "rank 0", terminal.get());
    log.OpenFile(folder / "logs", "rank_0.log", what);
    log.Write(LogLevel::kDebug, kAll, std::string(what) + "'s line, start 7: no header");
  }
  const std::string path = folder / "logs/rank_0.log";
  REQUIRE(Rests(path) == Lines{"info    rank 0  start 1: first",
                               "debug   rank 0  first's line, start 7: no header",
                               "info    rank 0  start 2: second",
                               "debug   rank 0  second's line, start 7: no header"});
  REQUIRE(StartsIn(path) == 2);
  REQUIRE(Rest(LastLinesOf(path, 20, "").at(0)) ==
          "debug   rank 0  second's line, start 7: no header");
  REQUIRE(LastLinesOf(path, 20, "").size() == 1);
  REQUIRE(LastLinesOf(path, 20, "2026-01-01T00:00:00Z").size() == 1);
  REQUIRE(LastLinesOf(path, 20, "9999-01-01T00:00:00Z").empty());
  REQUIRE(LastLinesOf(folder / "none", 20, "").empty());
}

TEST_CASE("the last error of a log comes back as it was said", "[cli][log]") {
  const Folder folder;
  const std::string path = folder / "logs/rank_3.log";
  const std::string text = "not saved:\n  a: No space left\n  b: the same";
  for (const bool again : {false, true}) {
    Terminal terminal;
    ProgramLog log("millrace", "rank 3", terminal.get());
    log.OpenFile(folder / "logs", "rank_3.log", "a test");
    log.Write(LogLevel::kDebug, kAll, "step 4: saving");
    log.Write(LogLevel::kWarning, kThis, "error   rank 3  of a disk");
    if (again) continue;
    log.LastWords(text, ExitCode(ErrorCode::kIo));
    const std::optional<LoggedError> error = LastErrorOf(LastLinesOf(path, 20, ""));
    REQUIRE(error);
    REQUIRE(error->text == text);
    REQUIRE(error->time == LastLinesOf(path, 20, "").at(2).substr(0, error->time.size()));
    REQUIRE(error->time.back() == 'Z');
    REQUIRE(error->before.size() == 2);
    REQUIRE(Rest(error->before.at(0)) == "debug   rank 3  step 4: saving");
    REQUIRE(LastErrorOf({"    error   rank 3  x", "error   rank 3  x", "", "T error   x"}) ==
            std::nullopt);
  }
  REQUIRE_FALSE(LastErrorOf(LastLinesOf(path, 20, "")));  // an error of an earlier start
}

TEST_CASE("a full file is put aside, one at most, and each begins with the header", "[cli][log]") {
  const Folder folder;
  const std::string path = folder / "logs/rank_0.log";
  constexpr int kLines = 300, kMaxBytes = 4000;
  {
    LogFile file(path, "header", {kMaxBytes, {}});
    for (int i = 0; i < kLines; ++i)
      file.Append("line " + std::to_string(i) + std::string(30, '.'));
    REQUIRE(file.Drain(std::chrono::seconds(30)));
  }
  size_t files = 0;
  Lines all;
  for (const char* name : {"rank_0.1.log", "rank_0.log"}) {
    const Lines lines = LinesIn(TextOf(folder / ("logs/" + std::string(name))));
    REQUIRE(std::filesystem::file_size(folder / ("logs/" + std::string(name))) <= kMaxBytes + 10);
    REQUIRE(lines.at(0) == "header");
    all.insert(all.end(), lines.begin() + 1, lines.end());
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder / "logs"))
    files += entry.is_regular_file();
  REQUIRE(files == 2);
  REQUIRE(all.size() > 80);  // one file holds about 97 lines
  for (size_t i = 0; i < all.size(); ++i)
    REQUIRE(all[i] == "line " + std::to_string(kLines - all.size() + i) + std::string(30, '.'));
  REQUIRE(StartsIn(path) == 0);
}

TEST_CASE("a log that cannot be opened is one warning, and the program goes on", "[cli][log]") {
  const Folder folder;
  std::ofstream(folder / "logs") << "a file, no folder";
  Terminal terminal;
  ProgramLog log("millrace", "rank 0", terminal.get());
  log.OpenFile(folder / "logs", "rank_0.log", "x");
  log.Info(kAll, "goes on");
  const Lines lines = terminal.lines();
  REQUIRE(lines.size() == 2);
  REQUIRE(lines[0].find("millrace: warning: no log is kept in " + (folder / "logs") + ": ") == 0);
  REQUIRE(lines[1] == "millrace: goes on");
}

TEST_CASE("a full disk is said once, and lines are kept again when there is room", "[cli][log]") {
  const Folder folder;
  std::filesystem::create_directory(folder / "logs");
  const std::string path = folder / "logs/rank_0.log";
  std::filesystem::create_symlink("/dev/full", path);
  Terminal terminal;
  {
    ProgramLog log("millrace", "rank 0", terminal.get());
    log.OpenFile(folder / "logs", "rank_0.log", "x");
    for (int i = 0; i < 50; ++i) log.Write(LogLevel::kDebug, kAll, "lost");
    log.LastWords("drains the file", ExitCode(ErrorCode::kConfig));
    REQUIRE(terminal.lines() == Lines{"millrace: warning: lines of the log in " +
                                      (folder / "logs") + " are lost: No space left on device"});
    std::filesystem::remove(path);
    log.Write(LogLevel::kDebug, kAll, "kept");
  }
  Lines rests = Rests(path);
  // The warning is a line, too: it is lost with the others, or comes when there is room again.
  REQUIRE(std::erase_if(rests, [](const std::string& line) {
            return line.starts_with("warning rank 0  lines of the log in ");
          }) <= 1);
  REQUIRE(rests == Lines{"info    rank 0  start 1: x", "debug   rank 0  kept"});
  REQUIRE(terminal.lines().size() == 1);
}

// The one that this process has open for the file.
int DescriptorOf(const std::string& path) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    if (std::filesystem::read_symlink(entry.path(), ignored) == path)
      return std::stoi(entry.path().filename().string());
  }
  return -1;
}

TEST_CASE("a pipe in the file's place is refused, with a reader or without", "[cli][log]") {
  const Folder folder;
  const std::string path = folder / "rank_0.log";
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  for (const bool read : {true, false}) {
    const int reader = read ? ::open(path.c_str(), O_RDONLY | O_NONBLOCK) : -1;
    REQUIRE_THROWS_WITH(LogFile(path, "header", {}), "Not a regular file");
    if (read) ::close(reader);
  }
}

TEST_CASE("a disk that hangs delays nobody", "[cli][log]") {
  const Folder folder;
  const std::string path = folder / "rank_0.log";
  LogFile slow(path, "header", {});
  // A pipe that nobody empties stands in for the disk, behind the file's own descriptor.
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  REQUIRE(::dup2(pipe_ends[1], DescriptorOf(path)) >= 0);
  const int reader = pipe_ends[0];
  REQUIRE(::fcntl(reader, F_SETFL, O_NONBLOCK) == 0);
  const auto start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < LogFile::kQueued + 3000; ++i) slow.Append(std::string(100, 'x'));
  REQUIRE_FALSE(slow.Drain(std::chrono::milliseconds(100)));
  REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  // Once it is read, the rest comes, and what is missing is said.
  std::string text;
  while (!slow.Drain(std::chrono::milliseconds(10))) {
    char part[65536];
    for (ssize_t count; (count = ::read(reader, part, sizeof part)) > 0;)
      text.append(part, static_cast<size_t>(count));
  }
  char part[65536];
  for (ssize_t count; (count = ::read(reader, part, sizeof part)) > 0;)
    text.append(part, static_cast<size_t>(count));
  ::close(reader);
  ::close(pipe_ends[1]);
  const Lines lines = LinesIn(text);
  const auto written =
      static_cast<int64_t>(std::count(lines.begin(), lines.end(), std::string(100, 'x')));
  int64_t missing = 0;
  for (const std::string& line : lines)
    if (line.find(" lines are missing ") != line.npos)
      missing += std::stoll(line.substr(line.find("log  ") + 5));
  REQUIRE(missing > 0);
  REQUIRE(written + missing == static_cast<int64_t>(LogFile::kQueued) + 3000);
}

TEST_CASE("the last lines come before an error that is not the user's to mend", "[cli][log]") {
  const auto shown = [](ErrorCode code, int lines) {
    Terminal terminal;
    ProgramLog log("millrace", "rank 0", terminal.get());
    log.BeRank(1, 3);
    for (int i = 0; i < lines; ++i) log.Write(LogLevel::kDebug, kAll, "step " + std::to_string(i));
    log.Warning(kThis, "hot");
    log.LastWords("the reason", ExitCode(code));
    log.LastWords("another thread's", ExitCode(code));
    return terminal.lines();
  };
  for (const ErrorCode code : {ErrorCode::kInternal, ErrorCode::kTimeout, ErrorCode::kNonFinite,
                               ErrorCode::kIo, ErrorCode::kDevice}) {
    const Lines lines = shown(code, 30);
    REQUIRE(lines.size() == 2 + ProgramLog::kLastLines);
    REQUIRE(lines[0] == "millrace: warning: rank 1: hot");
    REQUIRE(lines[1] == "millrace: the last lines of rank 1:");
    REQUIRE(Rest(lines[2].substr(2)) == "debug   rank 1  step 11");
    REQUIRE(Rest(lines.back().substr(2)) == "warning rank 1  hot");
  }
  for (const ErrorCode code : {ErrorCode::kConfig, ErrorCode::kData, ErrorCode::kCheckpoint,
                               ErrorCode::kDoesNotFit, ErrorCode::kPeerLost, ErrorCode::kPreempted})
    REQUIRE(shown(code, 30) == Lines{"millrace: warning: rank 1: hot"});
}

TEST_CASE("the reason of the end is in the file when the process ends", "[cli][log]") {
  const Folder folder;
  Terminal terminal;
  ProgramLog log("millrace", "rank 0", terminal.get());
  log.OpenFile(folder / "logs", "rank_0.log", "x");
  log.Write(LogLevel::kDebug, kAll, "step 1");
  log.LastWords("a device failed", ExitCode(ErrorCode::kDevice));
  const std::string path = folder / "logs/rank_0.log";
  REQUIRE(Rests(path) == Lines{"info    rank 0  start 1: x", "debug   rank 0  step 1",
                               "error   rank 0  a device failed"});
  REQUIRE(terminal.lines().at(0) == "millrace: the last lines of rank 0 (" + path + "):");
  REQUIRE(terminal.lines().size() == 2);
}

TEST_CASE("what clears the terminal's last line is called before each line", "[cli][log]") {
  Terminal terminal;
  ProgramLog log("millrace", "rank 0", terminal.get());
  int calls = 0;
  log.BeforeLine([&] { ++calls; });
  log.Write(LogLevel::kDebug, kAll, "hidden");
  REQUIRE(calls == 0);
  log.Info(kAll, "shown");
  REQUIRE(calls == 1);
}

}  // namespace
}  // namespace millrace
