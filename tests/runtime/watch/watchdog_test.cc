// When a watchdog speaks and when it does not: ranks as threads, each with marks of its own.
#include "runtime/watch/watchdog.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <optional>

#include "comm/local/run_ranks.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;
using Clock = std::chrono::steady_clock;

constexpr auto kLimit = 400ms;

struct Verdict {
  int rank = 0;
  std::string text;
  double seconds = 0;  // since the watchdogs started
};

// What the watchdogs of a run have said.
class Verdicts {
 public:
  void Add(Verdict verdict) {
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(verdict));
    changed_.notify_all();
  }
  // Until `count` have been spoken, however busy the machine is, and then for long enough that one
  // more would come.
  void WaitFor(size_t count) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, 60s, [&] { return all_.size() >= count; });
    }
    std::this_thread::sleep_for(2 * kLimit);
  }
  std::vector<Verdict> All() {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Verdict> all_;
};

using Work = std::function<void(int rank, ProgressMarks&, Verdicts& said)>;

// Runs `work` on each rank beside its watchdog; what the watchdogs have said when all work is done.
std::vector<Verdict> Watched(int world, std::chrono::milliseconds long_limit, const Work& work) {
  const TempDir temp;
  Verdicts said;
  RunRanks(world, [&](Communicator& comm) {
    ProgressMarks marks;
    WatchdogOptions options;
    options.limit = kLimit;
    options.long_limit = long_limit;
    const auto start = Clock::now();
    options.on_stall = [&, rank = comm.rank()](const std::string& text) {
      said.Add({rank, text, std::chrono::duration<double>(Clock::now() - start).count()});
    };
    std::string warning;
    const auto watchdog = Watchdog::Start(comm, temp / "run", marks, {}, options, warning);
    if (!watchdog || !warning.empty()) throw std::runtime_error("no watchdog: " + warning);
    work(comm.rank(), marks, said);
    comm.Barrier();
  });
  return said.All();
}

// The verdicts of each of `runs`, which go on at the same time: they only wait.
std::vector<std::vector<Verdict>> Together(
    const std::vector<std::function<std::vector<Verdict>()>>& runs) {
  std::vector<std::future<std::vector<Verdict>>> started;
  for (const auto& run : runs) started.push_back(std::async(std::launch::async, run));
  std::vector<std::vector<Verdict>> verdicts;
  for (auto& run : started) verdicts.push_back(run.get());
  return verdicts;
}

void Tick(ProgressMarks& marks, std::chrono::milliseconds time) {
  for (const auto until = Clock::now() + time; Clock::now() < until;
       std::this_thread::sleep_for(5ms))
    marks.Tick();
}

TEST_CASE("ranks that all wait are reported once, by the lowest, after the limit") {
  for (const int world : {1, 3}) {
    const auto verdicts = Watched(world, 10min, [](int, ProgressMarks& marks, Verdicts& said) {
      marks.BeginRun({0, false, 3});
      marks.At(17, true);
      said.WaitFor(1);
    });
    REQUIRE(verdicts.size() == 1);
    CHECK(verdicts[0].rank == 0);
    CHECK(verdicts[0].seconds > 0.4);
    CHECK_THAT(verdicts[0].text, Contains("no progress for") && Contains("op 17 of step 4"));
  }
}

TEST_CASE(
    "a rank that speaks and does not end the job is followed by the others, five seconds later") {
  const auto verdicts = Watched(2, 10min, [](int, ProgressMarks& marks, Verdicts& said) {
    marks.BeginRun({});
    marks.At(17, true);
    said.WaitFor(2);
  });
  REQUIRE(verdicts.size() == 2);
  CHECK((verdicts[0].rank == 0 && verdicts[1].rank == 1));
  CHECK(verdicts[1].seconds - verdicts[0].seconds > 4);
}

TEST_CASE("as long as one rank moves, nobody is hung") {
  const auto verdicts = Watched(3, 10min, [](int rank, ProgressMarks& marks, Verdicts&) {
    marks.BeginRun({});
    if (rank == 2) return Tick(marks, 6 * kLimit);
    marks.At(17, true);
    std::this_thread::sleep_for(6 * kLimit);
  });
  CHECK(verdicts.empty());
}

TEST_CASE("a rank that moves and then stops is named, not those that wait for it") {
  const auto verdicts = Watched(3, 10min, [](int rank, ProgressMarks& marks, Verdicts& said) {
    marks.BeginRun({});
    marks.At(17, true);
    if (rank == 1) {
      marks.At(9, false);
      Tick(marks, 2 * kLimit);
    }
    said.WaitFor(1);
  });
  REQUIRE(verdicts.size() == 1);
  CHECK(verdicts[0].rank == 0);
  CHECK_THAT(verdicts[0].text,
             Contains("rank 1 (pid") && Contains("is in op 9 of step 1 and holds the others up; "
                                                 "ranks 0, 2 wait in op 17"));
}

TEST_CASE("a phase whose parts cannot be marked has the long limit, on every rank's account") {
  std::vector<std::function<std::vector<Verdict>()>> patient, strict;
  for (const auto phase :
       {RunPhase::kSyncing, RunPhase::kLoading, RunPhase::kTidying, RunPhase::kSettingUp}) {
    // Rank 1 works in it, and rank 0 waits in another.
    const auto work = [phase](bool is_strict) {
      return [phase, is_strict](int rank, ProgressMarks& marks, Verdicts& said) {
        const PhaseScope scope(&marks, rank == 1 ? phase : RunPhase::kSaving, 3);
        is_strict ? said.WaitFor(1) : std::this_thread::sleep_for(5 * kLimit);
      };
    };
    patient.push_back([work] { return Watched(2, 1h, work(false)); });
    strict.push_back([work] { return Watched(2, 3 * kLimit, work(true)); });
  }
  for (const auto& verdicts : Together(patient)) CHECK(verdicts.empty());
  for (const auto& verdicts : Together(strict)) {
    REQUIRE(verdicts.size() == 1);
    CHECK(verdicts[0].seconds > 1.2);
  }
}

TEST_CASE("the caller's time and a paused terminal are not judged, but work that was issued is") {
  std::vector<std::function<std::vector<Verdict>()>> runs;
  for (const bool busy : {false, true})
    for (const auto phase : {RunPhase::kCaller, RunPhase::kReporting})
      runs.push_back([phase, busy] {
        return Watched(2, 10min, [phase, busy](int rank, ProgressMarks& marks, Verdicts& said) {
          const PhaseScope scope(&marks, phase);
          if (!busy) return std::this_thread::sleep_for(4 * kLimit);
          marks.BeginRun({});
          marks.At(rank, true);
          said.WaitFor(1);
        });
      });
  std::vector<size_t> said;
  for (const auto& verdicts : Together(runs)) said.push_back(verdicts.size());
  CHECK(said == std::vector<size_t>{0, 0, 1, 1});
}

TEST_CASE("a phase of parts has the limit") {
  const std::vector phases = {RunPhase::kTraining, RunPhase::kReadingTokens, RunPhase::kEvaluating,
                              RunPhase::kGenerating, RunPhase::kSaving};
  std::vector<std::function<std::vector<Verdict>()>> runs;
  for (const auto phase : phases)
    runs.push_back([phase] {
      return Watched(1, 10min, [phase](int, ProgressMarks& marks, Verdicts& said) {
        const PhaseScope scope(&marks, phase, 3);
        Tick(marks, 3 * kLimit);
        said.WaitFor(1);
      });
    });
  const auto verdicts = Together(runs);
  for (size_t i = 0; i < phases.size(); ++i) {
    REQUIRE(verdicts[i].size() == 1);
    CHECK(verdicts[i][0].seconds > 1.6);
    CHECK_THAT(verdicts[i][0].text, Contains(std::string(Name(phases[i]))));
  }
}

TEST_CASE("a rank that has left is waited for by nobody's watchdog, and named by none") {
  const TempDir temp;
  Verdicts said;
  RunRanks(2, [&](Communicator& comm) {
    ProgressMarks marks;
    WatchdogOptions options;
    options.limit = kLimit;
    options.on_stall = [&](const std::string& text) { said.Add({comm.rank(), text}); };
    std::string warning;
    auto watchdog = Watchdog::Start(comm, temp / "run", marks, {}, options, warning);
    if (comm.rank() == 0) return watchdog.reset();
    marks.BeginRun({});
    marks.At(5, true);
    said.WaitFor(1);
  });
  REQUIRE(said.All().size() == 1);
  CHECK(said.All()[0].rank == 1);
  CHECK_THAT(said.All()[0].text, Contains("rank 1") && !Contains("rank 0"));
}

// Rank 1's transport breaks after a while in which it has ticked; what the watchdogs have said
// when all work is done.
std::vector<Verdict> WithBrokenTransport(const Work& work) {
  const TempDir temp;
  Verdicts said;
  std::atomic<bool> broken = false;
  RunRanks(2, [&](Communicator& comm) {
    ProgressMarks marks;
    WatchdogOptions options;
    options.limit = 1min;
    options.broken_limit = 200ms;
    if (comm.rank() == 1)
      options.check_transport = [&] {
        if (broken) throw std::runtime_error("a cable was pulled");
      };
    options.on_stall = [&, rank = comm.rank()](const std::string& text) { said.Add({rank, text}); };
    std::string warning;
    const auto watchdog = Watchdog::Start(comm, temp / "run", marks, {}, options, warning);
    std::this_thread::sleep_for(500ms);
    if (!said.All().empty()) throw std::runtime_error("spoke of a sound transport");
    comm.Barrier();  // the other one has looked, too
    broken = true;
    work(comm.rank(), marks, said);
    comm.Barrier();
  });
  return said.All();
}

TEST_CASE("a rank that stands still over a broken transport says so at once, and once") {
  const auto verdicts = WithBrokenTransport([](int, ProgressMarks& marks, Verdicts& said) {
    marks.BeginRun({});
    marks.At(17, true);
    said.WaitFor(1);
  });
  REQUIRE(verdicts.size() == 1);
  CHECK(verdicts[0].rank == 1);
  CHECK_THAT(verdicts[0].text,
             Contains("the transport of rank 1 is broken: a cable was pulled; no progress for") &&
                 Contains("all ranks wait for each other in op 17 of step 1"));
}

TEST_CASE("a broken transport is left to a rank that moves, or is on its way out") {
  const auto moving = WithBrokenTransport([](int, ProgressMarks& marks, Verdicts&) {
    marks.BeginRun({});
    Tick(marks, 1s);
  });
  CHECK(moving.empty());
  const auto leaving = WithBrokenTransport([](int, ProgressMarks& marks, Verdicts&) {
    const PhaseScope scope(&marks, RunPhase::kEnding, 0);
    std::this_thread::sleep_for(1s);
  });
  CHECK(leaving.empty());
}

TEST_CASE("a process that was stopped whole begins to count anew") {
  int ends[2] = {};
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    RunRanks(1, [&](Communicator& comm) {
      ProgressMarks marks;
      WatchdogOptions options;
      options.limit = 1s;
      options.on_stall = [&](const std::string&) {
        ::_exit(::write(ends[1], "!", 1) == 1 ? 0 : 1);
      };
      std::string warning;
      marks.BeginRun({});
      const auto watchdog = Watchdog::Start(comm, "", marks, {}, options, warning);
      std::this_thread::sleep_for(1min);
    });
  }
  std::this_thread::sleep_for(300ms);
  ::kill(child, SIGSTOP);
  std::this_thread::sleep_for(2s);
  const auto start = Clock::now();
  ::kill(child, SIGCONT);
  char said = 0;
  CHECK(::read(ends[0], &said, 1) == 1);
  CHECK(said == '!');
  CHECK(Clock::now() - start > 900ms);
  CHECK(::waitpid(child, nullptr, 0) == child);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("where the records cannot be kept there is no watchdog, and one warning") {
  const TempDir temp;
  WriteBytes(temp / "file", "not a folder");
  std::vector<std::string> warnings(2);
  std::vector<int> watched(2);
  RunRanks(2, [&](Communicator& comm) {
    const ProgressMarks marks;
    const auto rank = static_cast<size_t>(comm.rank());
    watched[rank] = Watchdog::Start(comm, temp / "file", marks, {}, {}, warnings[rank]) != nullptr;
  });
  CHECK(watched == std::vector<int>{0, 0});
  CHECK_THAT(warnings[0],
             Contains("the watchdog is off") && Contains("rank 0: ") && Contains(temp / "file"));
  CHECK(warnings[1].empty());
}

}  // namespace
}  // namespace millrace
