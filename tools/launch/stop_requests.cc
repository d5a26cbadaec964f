#include "tools/launch/stop_requests.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <system_error>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr int64_t kOneRequestNs = 100'000'000;
constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

std::atomic<int> stop_requests{0};
std::atomic<int64_t> last_request_ns{0};  // 0: none yet
std::atomic<int> wake_end{-1};            // of a pipe: what is written there ends poll()

// Async-signal-safe. Handlers, no signalfd: libraries have threads, which have not blocked the
// signals.
void OnSignal(int signal) {
  const int saved = errno;
  if (signal != SIGCHLD) {
    timespec now = {};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t ns = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
    const int64_t before = last_request_ns.exchange(ns);
    if (before == 0 || ns - before >= kOneRequestNs) stop_requests.fetch_add(1);
  }
  [[maybe_unused]] const ssize_t written = ::write(wake_end.load(), "x", 1);
  errno = saved;
}

// The pipe's other end.
int CatchSignals() {
  static const int wake = [] {
    int ends[2];
    MR_CHECK(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "pipe: {}",
             std::generic_category().message(errno));
    wake_end = ends[1];
    struct sigaction action = {};
    action.sa_handler = OnSignal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGCHLD, &action, nullptr);
    for (const int number : kStopSignals) {
      struct sigaction before;
      if (sigaction(number, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(number, &action, nullptr);
    }
    return ends[0];
  }();
  return wake;
}

}  // namespace

void CatchStopRequests() { CatchSignals(); }

int StopRequests() { return stop_requests.load(); }

int WakeDescriptor() { return CatchSignals(); }

void UnblockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : kStopSignals) sigaddset(&signals, number);
  sigprocmask(SIG_UNBLOCK, &signals, nullptr);
}

int StopSequence::Next(double now_s, int requests) {
  if (requests == 0) return 0;
  if (!first_s_) first_s_ = now_s;
  if (forced_s_) {
    if (killed_ || (requests == forced_requests_ && now_s - *forced_s_ < kClearUpS)) return 0;
    killed_ = true;
    return SIGKILL;
  }
  if (requests > 1 || (grace_s_ && now_s - *first_s_ > *grace_s_)) {
    forced_s_ = now_s;
    forced_requests_ = requests;
    return SIGTERM;
  }
  if (asked_s_ && now_s - *asked_s_ < kAskAgainS) return 0;
  asked_s_ = now_s;
  return SIGUSR1;
}

}  // namespace millrace
