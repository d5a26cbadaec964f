// Marks as another thread sees them, and records as another process does.
#include "runtime/exec/observe/progress.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/watch/progress_board.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

// Keeps this thread's CPU busy for longer than what counts as progress: by its own clock, since
// others may have the CPU.
void Compute() {
  const auto used_ms = [] {
    timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return used.tv_sec * 1000 + used.tv_nsec / 1000000;
  };
  const auto until = used_ms() + 100;
  volatile int64_t sink = 0;
  while (used_ms() < until) sink = sink + 1;
}

TEST_CASE("an op, a run, a phase and a tick are progress; nothing is none") {
  ProgressMarks marks;
  ProgressReading last = marks.Read();
  const auto moved = [&] {
    const ProgressReading now = marks.Read();
    const bool same = now.SameAs(last);
    last = now;
    return !same;
  };
  REQUIRE_FALSE(moved());
  REQUIRE(marks.BeginRun({0, false, 7}) == 1);
  REQUIRE(moved());
  marks.At(1, false);
  REQUIRE(moved());
  marks.At(1, false);
  REQUIRE_FALSE(moved());
  marks.At(2, true);
  REQUIRE(moved());
  REQUIRE(last.busy());
  REQUIRE(last.in_collective);
  marks.EndIssue();
  REQUIRE(moved());
  REQUIRE_FALSE(last.busy());
  REQUIRE(last.index == 2);  // the last op stays known
  REQUIRE(last.host_run == RunInfo{0, false, 7});
  marks.Tick();
  REQUIRE(moved());
  {
    const PhaseScope evaluating(&marks, RunPhase::kEvaluating, 3);
    REQUIRE(moved());
    REQUIRE(last.phase == RunPhase::kEvaluating);
    REQUIRE(last.detail == 3);
    {
      const PhaseScope same(&marks, RunPhase::kEvaluating, 3);
      REQUIRE(moved());
    }
  }
  REQUIRE(moved());
  REQUIRE(last.phase == RunPhase::kCaller);
  const PhaseScope none(nullptr, RunPhase::kSaving);
}

TEST_CASE("CPU time is progress in an op that computes, and in no collective or phase") {
  ProgressMarks marks;
  marks.BeginRun({});
  marks.At(4, false);
  const ProgressReading computing = marks.Read();
  Compute();
  REQUIRE_FALSE(marks.Read().SameAs(computing));
  marks.At(5, true);
  const ProgressReading waiting = marks.Read();
  Compute();
  REQUIRE(marks.Read().SameAs(waiting));
  marks.EndIssue();
  const ProgressReading idle = marks.Read();
  Compute();
  REQUIRE(marks.Read().SameAs(idle));
}

TEST_CASE("a device's words are progress and tell whether it is busy; CPU time then is none") {
  ProgressMarks marks;
  alignas(64) std::byte words[kDeviceWords * kDeviceWordStride] = {};
  const auto set = [&](int word, uint64_t value) {
    __atomic_store_n(reinterpret_cast<uint64_t*>(words + word * kDeviceWordStride), value,
                     __ATOMIC_RELEASE);
  };
  marks.AttachDevice(words);
  REQUIRE_FALSE(marks.Read().busy());
  marks.BeginRun({0, false, 40});
  marks.EndIssue();
  marks.BeginRun({1, false, 0});
  marks.EndIssue();
  REQUIRE(marks.Read().busy());  // issued, not begun
  set(kRunBegunWord, 1);
  REQUIRE(marks.Read().device_run == RunInfo{0, false, 40});
  for (int word = kFirstStreamWord; word < kDeviceWords; ++word) {
    const ProgressReading before = marks.Read();
    Compute();
    REQUIRE(marks.Read().SameAs(before));
    set(word, StreamWord(word, StreamMark::kInCollective));
    REQUIRE_FALSE(marks.Read().SameAs(before));
  }
  set(kRunDoneWord, 1);
  REQUIRE(marks.Read().busy());  // the second
  set(kRunBegunWord, 2);
  set(kRunDoneWord, 2);
  REQUIRE_FALSE(marks.Read().busy());
  REQUIRE(marks.Read().device_run == RunInfo{1, false, 0});
  marks.AttachDevice(nullptr);
  REQUIRE_FALSE(marks.Read().has_device);
}

TEST_CASE("a record comes back as it was published, and a damaged one not at all") {
  const TempDir temp;
  const std::string folder = MakeJobFolder(temp / "run");
  ProgressBoard board(folder, 3, 5);
  ProgressRecord record = OwnRecord(3, 5), read;
  record.beat = 77;
  record.idle_ms = 123456;
  record.reading.index = 19;
  board.Publish(record);
  REQUIRE(board.Read(3, read) == ProgressBoard::Found::kRecord);
  REQUIRE(read.beat == 77);
  REQUIRE(read.idle_ms == 123456);
  REQUIRE(read.reading.index == 19);
  REQUIRE(read.pid == ::getpid());
  REQUIRE(ProcessState(read) == 'R');
  REQUIRE(board.Read(2, read) == ProgressBoard::Found::kNothing);
  std::string bytes = ReadBytes(folder + "/rank_3");
  bytes[40] ^= 1;
  WriteBytes(folder + "/rank_3", bytes);
  REQUIRE(board.Read(3, read) == ProgressBoard::Found::kUnreadable);
  WriteBytes(folder + "/rank_3", bytes.substr(0, 100));
  REQUIRE(board.Read(3, read) == ProgressBoard::Found::kUnreadable);
}

TEST_CASE("the last rank to leave takes the folders along") {
  const TempDir temp;
  {
    const std::string folder = MakeJobFolder(temp / "run");
    ProgressBoard first(folder, 0, 2);
    { ProgressBoard second(folder, 1, 2); }
    REQUIRE(std::filesystem::exists(folder + "/rank_0"));
    REQUIRE_FALSE(std::filesystem::exists(folder + "/rank_1"));
  }
  REQUIRE_FALSE(std::filesystem::exists(temp / "run"));
}

TEST_CASE("a stopped process, one that has ended, and what it left are told apart") {
  const TempDir temp;
  const std::string run = temp / "run";
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    new ProgressBoard(MakeJobFolder(run), 0, 1);
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  REQUIRE(::waitpid(child, nullptr, WUNTRACED) == child);
  const auto jobs = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(run + "/.progress"))
      names.push_back(entry.path().string());
    return names;
  };
  const std::string left = jobs().at(0);
  ProgressRecord record;
  {
    const ProgressBoard board(MakeJobFolder(run), 7,
                              8);  // of a job beside it, which removes nothing
    REQUIRE(jobs().size() == 2);
  }
  auto other = std::make_unique<ProgressBoard>(left, 9, 10);
  REQUIRE(other->Read(0, record) == ProgressBoard::Found::kRecord);
  REQUIRE(ProcessState(record) == 'T');
  ::kill(child, SIGKILL);
  siginfo_t ended = {};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) == 0);
  REQUIRE(ProcessState(record) == 'X');  // a zombie
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  REQUIRE(ProcessState(record) == 'X');
  record.started += 1;  // another process of the same number
  record.pid = ::getpid();
  REQUIRE(ProcessState(record) == 'X');
  std::strcpy(record.host, "another host");
  REQUIRE(ProcessState(record) == '?');
  const std::string beside = MakeJobFolder(run);  // rank 9 of that job is this process, which lives
  REQUIRE(jobs().size() == 2);
  other.reset();
  const std::string next = MakeJobFolder(run);  // an empty folder may belong to a job that starts
  REQUIRE(jobs().size() == 2);
  REQUIRE(std::filesystem::exists(beside));
  REQUIRE_FALSE(std::filesystem::exists(left));
}

// Runs `leave` in a process that is killed by it or behind it.
template <class Leave>
void Killed(Leave&& leave) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    leave();
    ::raise(SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
}

TEST_CASE("what a job left that was killed at any moment of its start goes") {
  const TempDir temp;
  const std::string run = temp / "run";
  const auto jobs = [&] {
    return std::distance(std::filesystem::directory_iterator(run + "/.progress"),
                         std::filesystem::directory_iterator());
  };
  Killed([&] { MakeJobFolder(run); });  // before any rank's file
  REQUIRE(jobs() == 1);
  Killed([&] { WriteBytes(MakeJobFolder(run) + "/rank_0", ""); });  // before its first record
  REQUIRE(jobs() == 1);
  // Its maker has ended, but a record cannot be read, or its writer runs on: not this host's to
  // judge.
  std::string kept;
  Killed([&] { WriteBytes(MakeJobFolder(run) + "/rank_0", "of another version"); });
  REQUIRE(jobs() == 1);
  kept = std::filesystem::directory_iterator(run + "/.progress")->path().string();
  const std::string next = MakeJobFolder(run);
  REQUIRE(std::filesystem::exists(kept));
  std::filesystem::remove(kept + "/rank_0");
  auto living = std::make_unique<ProgressBoard>(kept, 1, 2);
  Killed([&] { MakeJobFolder(run); });
  REQUIRE(std::filesystem::exists(kept));
  REQUIRE(jobs() == 3);
  // Who leaves last takes along what died beside it.
  { const ProgressBoard board(next, 0, 1); }
  REQUIRE(jobs() == 1);
  living.reset();
  REQUIRE_FALSE(std::filesystem::exists(run));
}

}  // namespace
}  // namespace millrace
