#include "runtime/run/checkpoint/background_job.h"

#include <pthread.h>

#include <csignal>
#include <exception>
#include <new>
#include <utility>

namespace millrace {
namespace {

// Signals are for the thread that was started with them.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

BackgroundJob::~BackgroundJob() { Stop(nullptr, 0); }

void BackgroundJob::Stop(ProgressMarks* marks, int64_t detail) {
  const PhaseScope phase(marks, RunPhase::kSyncing, detail);
  marks_.stopped_.store(true, std::memory_order_relaxed);
  Join();
}

void BackgroundJob::Join() {
  if (thread_.joinable()) thread_.join();
}

void BackgroundJob::Do(const Work& work) {
  std::optional<Error> error;
  try {
    work(marks_);
  } catch (const Error& thrown) {
    error = thrown;
  } catch (const std::bad_alloc&) {
    error = Error(ErrorCode::kOutOfMemory, "no memory left to save a checkpoint with");
  } catch (const std::exception& thrown) {
    error = Error(ErrorCode::kInternal, thrown.what());
  }
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
  ended_ = std::chrono::steady_clock::now();
  state_.store(error_.has_value() ? State::kFailed : State::kDone, std::memory_order_release);
  over_.notify_all();
}

void BackgroundJob::Start(Work work) {
  Forget();
  state_.store(State::kRunning, std::memory_order_relaxed);
  const NoSignals inherited;
  thread_ = std::thread([this, work = std::move(work)] { Do(work); });
}

void BackgroundJob::RunHere(const Work& work, ProgressMarks* marks, int64_t detail) {
  Forget();
  const PhaseScope phase(marks, RunPhase::kSaving, detail);
  marks_.direct_ = marks;
  marks_.detail_ = detail;
  Do(work);
  marks_.direct_ = nullptr;
}

void BackgroundJob::Wait(ProgressMarks* marks, int64_t detail) {
  constexpr std::chrono::milliseconds kLook(20);
  const auto over = [this] { return state() != State::kRunning; };
  if (over()) return;
  const PhaseScope phase(marks, RunPhase::kSaving, detail);
  std::unique_lock lock(mutex_);
  for (uint64_t seen = 0; !over_.wait_for(lock, kLook, over);) {
    const uint64_t changes = marks_.changes_.load(std::memory_order_acquire);
    if (marks != nullptr && changes != seen)
      marks->Enter(marks_.phase_.load(std::memory_order_relaxed), detail);
    seen = changes;
  }
}

void BackgroundJob::Forget() {
  MR_CHECK(state() != State::kRunning, "a job is forgotten while it runs");
  Join();
  error_.reset();
  marks_.phase_.store(RunPhase::kSaving, std::memory_order_relaxed);
  state_.store(State::kNone, std::memory_order_relaxed);
}

}  // namespace millrace
