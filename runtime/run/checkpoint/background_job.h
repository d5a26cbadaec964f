// One piece of work at a time beside the thread that a rank trains on: writing a checkpoint.
//
// Threads  Start, Wait and the rest are the training thread's; the job has its own, which takes no
//          signals. Watchdog The training thread's progress is its own as long as it does something
//          else: a slow job is no hang, and hides none. In Wait, where it has nothing else to do,
//          the job's marks become its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/exec/observe/progress.h"

namespace millrace {

// What a job says of itself while it runs.
class JobMarks {
 public:
  void Enter(RunPhase phase) {
    phase_.store(phase, std::memory_order_relaxed);
    Change();
  }
  // A part is done. Error(kInternal) when nobody waits for the job any more.
  void Tick() {
    Change();
    MR_CHECK(!stopped_.load(std::memory_order_relaxed),
             "the run has ended before its checkpoint was saved");
  }

 private:
  friend class BackgroundJob;
  void Change() {
    changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    if (direct_ != nullptr) direct_->Enter(phase_.load(std::memory_order_relaxed), detail_);
  }

  std::atomic<RunPhase> phase_ = RunPhase::kSaving;
  std::atomic<uint64_t> changes_ = 0;
  std::atomic<bool> stopped_ = false;
  ProgressMarks* direct_ = nullptr;  // of the thread that runs the job itself
  int64_t detail_ = 0;
};

class BackgroundJob {
 public:
  using Work = std::function<void(JobMarks&)>;
  enum class State : uint8_t { kNone, kRunning, kDone, kFailed };

  BackgroundJob() = default;
  ~BackgroundJob();  // as Stop, unseen by a watchdog
  BackgroundJob(const BackgroundJob&) = delete;
  BackgroundJob& operator=(const BackgroundJob&) = delete;

  // The one before is not running. What the work throws is kept in error().
  void Start(Work work);
  // The same on this thread: it is over on return. `detail`: of its phases.
  void RunHere(const Work& work, ProgressMarks* marks, int64_t detail);
  // Until it is not running. `marks` may be null.
  void Wait(ProgressMarks* marks, int64_t detail);
  // Stops the job at its next Tick and waits for that, as for a disk: a call that never returns
  // ends by the watchdog's long limit. No job is started any more. `marks` may be null.
  void Stop(ProgressMarks* marks, int64_t detail);
  void Forget();  // kNone again

  State state() const { return state_.load(std::memory_order_acquire); }
  const Error& error() const { return *error_; }                          // kFailed
  std::chrono::steady_clock::time_point ended() const { return ended_; }  // kDone and kFailed

 private:
  void Do(const Work& work);
  void Join();

  JobMarks marks_;
  std::atomic<State> state_ = State::kNone;
  std::optional<Error> error_;
  std::chrono::steady_clock::time_point ended_;
  std::mutex mutex_;
  std::condition_variable over_;
  std::thread thread_;
};

}  // namespace millrace
