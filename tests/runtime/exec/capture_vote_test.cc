// All ranks capture a step or none, after every device is idle; a rank that cannot ends all of them
// with its words.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "tests/support/capturing_device.h"
#include "tests/support/engine_case.h"

namespace millrace::test {
namespace {

using Catch::Matchers::Contains;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 3;

PlanCase ThreeRanks() {
  PlanCase c;
  c.mesh = {1, kRanks};
  c.options.comm_scratch_bytes = 1 << 21;
  c.options.accumulate = 2;
  return c;
}

struct Ended {
  std::array<std::string, kRanks> said;  // by rank: the error that its steps ended with
  std::array<int64_t, kRanks> steps{};   // done
  double seconds = 0;
};

// Three steps, on devices with these hooks.
Ended StepsWith(GraphMode mode, const std::function<DeviceHooks(int rank)>& hooks,
                const std::function<void(int rank, int64_t step)>& before_step = {}) {
  const PlanCase c = ThreeRanks();
  EngineOptions options;
  options.graph = mode;
  Ended ended;
  const auto begin = Clock::now();
  RunEngines(
      c, options,
      [&](Engine& engine, int rank) {
        const auto r = static_cast<size_t>(rank);
        try {
          for (int64_t step = 0; step < 3; ++step) {
            if (before_step) before_step(rank, step);
            TrainStep(engine, c, rank, step);
            ++ended.steps[r];
          }
        } catch (const Error& error) {
          ended.said[r] = fmt::format("{} {}", Name(error.code()), error.what());
        }
      },
      [&](int rank) { return MakeCapturingDevice(hooks(rank)); });
  ended.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return ended;
}

TEST_CASE("one rank's capture fails: all ranks end with its words, and launch nothing") {
  // On this device a capture runs what is captured, so that the rank that fails does so at the end:
  // of the step, or of the last of two forwards, two backwards and an update.
  const std::pair<GraphMode, int> last_graphs[] = {{GraphMode::kStep, 1},
                                                   {GraphMode::kMicrobatch, 5}};
  for (const auto& [mode, last_graph] : last_graphs) {
    CAPTURE(static_cast<int>(mode));
    int captured = 0;
    const Ended ended = StepsWith(mode, [&, last = last_graph](int rank) {
      DeviceHooks hooks;
      if (rank == 1)
        hooks.at_end_capture = [&captured, last] {
          if (++captured == last) throw Error(ErrorCode::kDevice, "the driver is out of words");
        };
      return hooks;
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      CHECK(ended.steps[r] == 1);  // the one that is issued
      CHECK_THAT(ended.said[r], Contains("device rank 1 cannot capture the recorded train step") &&
                                    Contains("the driver is out of words"));
    }
    CHECK(ended.seconds < 10);
  }
}

TEST_CASE("no rank begins its capture before every rank is ready for it") {
  std::atomic<bool> late_rank_is_there{false};
  std::atomic<int> too_early{0};
  const Ended ended = StepsWith(
      GraphMode::kStep,
      [&](int) {
        return DeviceHooks{.at_begin_capture = [&] { too_early += !late_rank_is_there; }};
      },
      [&](int rank, int64_t step) {
        if (rank != 2 || step != 1) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        late_rank_is_there = true;
      });
  for (const std::string& said : ended.said) CHECK(said == "");
  CHECK(too_early == 0);
}

TEST_CASE("a rank whose device fails before the capture ends all ranks, and nobody captures") {
  std::atomic<int> captures{0};
  std::array<bool, kRanks> failed{};
  const Ended ended = StepsWith(
      GraphMode::kStep,
      [&](int rank) {
        return DeviceHooks{.at_begin_capture = [&] { ++captures; },
                           .at_sync =
                               [rank, &failed] {
                                 if (failed[static_cast<size_t>(rank)])
                                   throw Error(ErrorCode::kDevice, "an illegal instruction");
                               }};
      },
      [&](int rank, int64_t step) { failed[static_cast<size_t>(rank)] = rank == 0 && step == 1; });
  for (const std::string& said : ended.said)
    CHECK_THAT(said, Contains("device rank 0 is not ready to capture the recorded train step") &&
                         Contains("an illegal instruction"));
  CHECK(captures == 0);
}

}  // namespace
}  // namespace millrace::test
