#include "runtime/data/run_lock.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

constexpr std::chrono::milliseconds kAtOnce(0);

// A process that holds the lock until it is killed; returned when it has it.
pid_t StartHolder(const std::string& folder) {
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock(folder, kAtOnce);
    [[maybe_unused]] const ssize_t sent = ::write(ready[1], "x", 1);
    while (true) ::pause();
  }
  ::close(ready[1]);
  char byte;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  ::close(ready[0]);
  return child;
}

void Kill(pid_t child) {
  ::kill(child, SIGKILL);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
}

TEST_CASE("a second run in a folder is refused and told whose it is", "[data]") {
  const TempDir temp;
  const std::string run = temp / "a/run";
  std::optional<RunLock> first(run);
  CHECK(first->warning().empty());
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  RequireError(ErrorCode::kConfig,
               {"run.dir " + run + " is in use",
                fmt::format("pid {} on host {} since 20", ::getpid(), host)},
               [&] { RunLock second(run, kAtOnce); });
  // Another name of the same folder is the same folder.
  std::filesystem::create_directory_symlink(run, temp / "link");
  RequireError(ErrorCode::kConfig, {"is in use"}, [&] { RunLock second(temp / "link", kAtOnce); });
  const RunLock elsewhere(temp / "a/other", kAtOnce);
  first.reset();
  const RunLock third(run, kAtOnce);
}

TEST_CASE("a killed holder leaves a file and no lock", "[data]") {
  const TempDir temp;
  const std::string run = temp / "run";
  const pid_t child = StartHolder(run);
  RequireError(ErrorCode::kConfig, {fmt::format("pid {} on host", child)},
               [&] { RunLock lock(run, kAtOnce); });
  Kill(child);
  CHECK(std::filesystem::exists(run + "/lock"));
  const RunLock lock(run, kAtOnce);
  // The dead one's longer text is gone.
  CHECK(ReadBytes(lock.path()).rfind(fmt::format("pid {} on", ::getpid()), 0) == 0);
  CHECK(ReadBytes(lock.path()).find('\n') == ReadBytes(lock.path()).size() - 1);
}

TEST_CASE("a run that is dying is waited for", "[data]") {
  const TempDir temp;
  const pid_t child = StartHolder(temp / "run");
  std::jthread killer([child] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    Kill(child);
  });
  const RunLock lock(temp / "run", std::chrono::seconds(30));
}

TEST_CASE("what ends in good order leaves nothing of the lock", "[data]") {
  const TempDir temp;
  { const RunLock lock(temp / "new"); }
  CHECK_FALSE(std::filesystem::exists(temp / "new"));
  {
    const RunLock lock(temp / "used");
    WriteBytes(temp / "used/metrics.jsonl", "{}\n");
  }
  CHECK(std::filesystem::exists(temp / "used/metrics.jsonl"));
  CHECK_FALSE(std::filesystem::exists(temp / "used/lock"));
  std::filesystem::create_directory(temp / "found");
  { const RunLock lock(temp / "found"); }
  CHECK(std::filesystem::is_empty(temp / "found"));
}

TEST_CASE("never two holders, however often the file comes and goes", "[data]") {
  const TempDir temp;
  std::atomic<int> holders = 0, most = 0, taken = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 200; ++i) {
          try {
            const RunLock lock(temp / "run", kAtOnce);
            const int now = ++holders;
            if (now > most) most = now;
            ++taken;
            std::this_thread::yield();
            --holders;
          } catch (const Error& error) {
            if (error.code() != ErrorCode::kConfig) most = 1000;
          }
        }
      });
  }
  CHECK(most == 1);
  CHECK(taken > 4);
}

TEST_CASE("a run.dir that cannot be a folder is an I/O error that names it", "[data]") {
  const TempDir temp;
  WriteBytes(temp / "file", "x");
  RequireError(ErrorCode::kIo, {temp / "file"}, [&] { RunLock lock(temp / "file/run", kAtOnce); });
}

}  // namespace
}  // namespace millrace
