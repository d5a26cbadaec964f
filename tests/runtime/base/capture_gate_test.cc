// Captures and waits for a device, which come one after the other.
#include "runtime/base/cuda/capture_gate.h"

#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace millrace {
namespace {

constexpr std::chrono::milliseconds kMoment(30);

// Until the thread `tid` of this process, which has begun, sleeps in the kernel: there is one thing
// that it may wait for.
void WaitUntilAsleep(const std::atomic<pid_t>& tid) {
  for (int tries = 0; tries < 10000; ++tries, std::this_thread::sleep_for(kMoment / 10)) {
    if (tid == 0) continue;
    std::ifstream file("/proc/self/task/" + std::to_string(tid) + "/stat");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    if (text.find(") S ") != std::string::npos) return;
  }
  FAIL("the thread does not wait");
}

TEST_CASE("a wait comes behind the captures that have begun, and before those that have not",
          "[base]") {
  CaptureGate gate;
  std::atomic<bool> waited = false, captured = false;
  std::atomic<pid_t> waiting = 0;
  gate.BeginCapture();
  gate.BeginCapture();
  std::thread waiter([&] {
    waiting = ::gettid();
    gate.Alone([&] { waited = true; });
  });
  WaitUntilAsleep(waiting);
  std::thread later([&] {
    gate.BeginCapture();
    captured = true;
    CHECK(waited);
    gate.EndCapture();
  });
  gate.EndCapture();
  std::this_thread::sleep_for(kMoment);
  CHECK_FALSE(waited);  // one is left
  CHECK_FALSE(captured);
  gate.EndCapture();
  waiter.join();
  later.join();
  CHECK(waited);
  CHECK(captured);
}

TEST_CASE("no capture and no wait overlap, whoever has failed", "[base]") {
  CaptureGate gate;
  std::atomic<int> captures = 0, waits = 0, overlaps = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        if (t < 2) {
          gate.BeginCapture();
          ++captures;
          overlaps += waits > 0;
          --captures;
          gate.EndCapture();
          continue;
        }
        try {
          gate.Alone([&] {
            overlaps += ++waits > 1 || captures > 0;
            --waits;
            if (i % 3 == 0) throw std::runtime_error("a wait that fails");
          });
        } catch (const std::runtime_error&) {
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(overlaps == 0);
}

TEST_CASE("each GPU has a gate of its own", "[base]") {
  CHECK(&CaptureGate::Of(0) == &CaptureGate::Of(0));
  CHECK(&CaptureGate::Of(0) != &CaptureGate::Of(1));
}

}  // namespace
}  // namespace millrace
