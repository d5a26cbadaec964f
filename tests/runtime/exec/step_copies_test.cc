// What a device is given around a run of a step: one launch ahead, which brings scalars and inputs,
// and one behind, which takes results; the host's ends of both are the step's own while it is in
// flight.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/local/local_world.h"
#include "comm/local/run_ranks.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/exec/agreement/plan_comms.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/observe/progress.h"
#include "tests/support/capturing_device.h"
#include "tests/support/engine_case.h"

namespace millrace::test {
namespace {

// One rank whose device tells what it is given from the first step on.
struct OneRank {
  PlanCase c = {};
  GraphMode mode = GraphMode::kStep;
  bool marked = true;
  std::vector<std::string> given = {};      // in order
  std::vector<const std::byte*> ends = {};  // of copies: of all of them, both

  void Run(const std::function<void(Engine&)>& fn) {
    const StepPlan plan = PlanOf(c);
    LocalWorld world(1);
    RunRanks(world, [&](CommFactory& factory) {
      CommSet comms(factory, c.mesh, CommSharing::kSeparate, CommSpecsOf({&plan}));
      const std::unique_ptr<Device> device = MakeCapturingDevice(
          {.at_copies =
               [&](std::span<const Device::Copy> copies, std::span<const Device::Mark> marks) {
                 std::string text;
                 for (const Device::Copy& copy : copies) {
                   text += fmt::format("{} ", copy.bytes);
                   ends.insert(ends.end(), {copy.to, copy.from});
                 }
                 given.push_back(fmt::format("{}+ {} marks", text, marks.size()));
               },
           .at_transfer = [&](int64_t bytes) { given.push_back(fmt::format("{} alone", bytes)); }});
      ProgressMarks marks;
      EngineOptions options;
      options.graph = mode;
      Engine engine({device.get(), &CpuKernels(), &comms, marked ? &marks : nullptr}, LayoutOf(c),
                    {StatesOf(c), {plan}}, options);
      engine.InitWeights(1234);
      given.clear();
      ends.clear();
      fn(engine);
    });
  }
};

// Of TinyGpt2: 2 sequences of 7 and a token. Marks: of the run, and of each stream; of its end.
constexpr const char *kAhead = "40 64 + 5 marks", *kBehind = "128 + 1 marks";

using Given = std::vector<std::string>;

TEST_CASE("a step is given one launch ahead, which brings what it reads, and one behind") {
  for (const GraphMode mode : {GraphMode::kOff, GraphMode::kStep}) {
    OneRank rank{.mode = mode};
    rank.Run([&](Engine& engine) {
      for (int64_t step = 0; step < 4; ++step) {
        rank.given.clear();
        TrainStep(engine, rank.c, 0, step);
        CHECK(rank.given == Given{kAhead, kBehind});
      }
    });
  }
}

TEST_CASE("a prologue finds what the host has written, and the step behind it is given no more") {
  OneRank rank;
  rank.c.precision = Mixed(DType::kF32, DType::kF32, DType::kBF16);
  rank.c.options.downcast = Downcast::kAfterUpdate;
  rank.Run([&](Engine& engine) {
    TrainStep(engine, rank.c, 0, 0);
    CHECK(rank.given == Given{kAhead, "+ 1 marks", "+ 5 marks", kBehind});
    rank.given.clear();
    TrainStep(engine, rank.c, 0, 1);
    CHECK(rank.given == Given{kAhead, kBehind});
  });
}

TEST_CASE("where nobody marks, the launches bring and take the same") {
  OneRank rank{.marked = false};
  rank.Run([&](Engine& engine) {
    TrainStep(engine, rank.c, 0, 0);
    CHECK(rank.given == Given{"40 64 + 0 marks", "128 + 0 marks"});
  });
}

TEST_CASE("inputs of many bytes are copied alone, ahead of the launch") {
  OneRank rank;
  rank.c.options.accumulate = 1025;
  rank.Run([&](Engine& engine) {
    engine.Enqueue(TokensOf(rank.c, 0, 0), 0, 14 * 1025);
    engine.Collect();
    CHECK(rank.given == Given{"65600 alone", "40 + 5 marks", kBehind});
  });
}

TEST_CASE("no host memory that a step in flight reads or writes is another step's") {
  OneRank rank;
  rank.Run([&](Engine& engine) {
    TrainStep(engine, rank.c, 0, 0);
    rank.ends.clear();
    for (int64_t step = 1; step <= Engine::kStepsInFlight; ++step)
      engine.Enqueue(TokensOf(rank.c, 0, step), step, 14);
    // Three copies of a step; the device's ends are the scalars, twice, and a half of the tokens.
    REQUIRE(rank.ends.size() == 6 * Engine::kStepsInFlight);
    const std::set<const std::byte*> all(rank.ends.begin(), rank.ends.end());
    CHECK(all.size() == 3 * Engine::kStepsInFlight + 1 + 2);
    while (engine.steps_in_flight() > 0) engine.Collect();
  });
}

}  // namespace
}  // namespace millrace::test
