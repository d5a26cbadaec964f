// A job that is stopped in the midst of a call of the system: waited for as for a disk, so that a
// watchdog sees it.
#include "runtime/run/checkpoint/background_job.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

namespace millrace {
namespace {

using namespace std::chrono_literals;

TEST_CASE("while a stopped job is waited for, its rank waits for the disk, and no longer") {
  ProgressMarks marks;
  marks.Enter(RunPhase::kTraining, 7);
  std::atomic<bool> open = false;
  std::atomic<int> seen = -1;
  std::atomic<int64_t> detail = -1;
  BackgroundJob job;
  job.Start([&](JobMarks& of_job) {
    while (!open) std::this_thread::sleep_for(1ms);  // a disk that does not answer
    of_job.Tick();
  });
  std::thread disk([&] {
    for (int i = 0; i < 5000 && marks.phase() == RunPhase::kTraining; ++i)
      std::this_thread::sleep_for(1ms);
    seen = static_cast<int>(marks.phase());
    detail = marks.detail();
    open = true;
  });
  job.Stop(&marks, 12);
  disk.join();
  CHECK(seen == static_cast<int>(RunPhase::kSyncing));
  CHECK(detail == 12);
  CHECK(marks.phase() == RunPhase::kTraining);
  CHECK(marks.detail() == 7);
  CHECK(job.state() == BackgroundJob::State::kFailed);
  CHECK(job.error().code() == ErrorCode::kInternal);
}

}  // namespace
}  // namespace millrace
