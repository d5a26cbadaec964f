// An arena whose memory has gone: what the system says of it, who is refused, and that it comes
// again at its addresses.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <functional>

#include "runtime/base/cpu/host_device.h"
#include "runtime/base/error.h"
#include "runtime/exec/bound_op.h"
#include "tests/support/capturing_device.h"
#include "tests/support/engine_case.h"

namespace millrace {
namespace {

using Catch::Matchers::Contains;

constexpr FlatId kFirst{0};

// Of narrow matrices whose copies are kept, so that every part has pages.
test::PlanCase CopiesCase() {
  test::PlanCase c;
  c.model.d_model = 100;
  for (BlockShape& block : c.model.blocks) block.Find<MlpShape>()->width = 120;
  c.precision = test::Mixed(DType::kF32, DType::kF32, DType::kBF16);
  c.options.downcast = Downcast::kAfterUpdate;
  return c;
}

EngineOptions Releasable(bool checked = false) {
  EngineOptions options;
  options.releasable = true;
  options.checked = checked;
  return options;
}

std::byte* ArenaOf(const Engine& engine) {
  return engine.BindingOf(engine.plans().plans.front()).arena;
}

std::vector<ByteRange> PagesOf(const Engine& engine, ArenaPart part) {
  return PagesOf(part, engine.plans().states, engine.arena_bytes(), engine.device().PageBytes());
}

// Bytes of the ranges that have pages of memory, by the system's own tables.
int64_t Resident(const Engine& engine, const std::vector<ByteRange>& ranges) {
  const int64_t page = engine.device().PageBytes();
  int64_t bytes = 0;
  for (const ByteRange& range : ranges) {
    std::vector<unsigned char> pages(static_cast<size_t>((range.end - range.begin) / page));
    if (mincore(ArenaOf(engine) + range.begin, static_cast<size_t>(range.end - range.begin),
                pages.data()) != 0)
      throw Error(ErrorCode::kInternal, "mincore");
    for (const unsigned char in : pages) bytes += (in & 1) * page;
  }
  return bytes;
}

// Whether the first bytes of all ranges can be read, or of none: the system looks, and says so.
bool AllAre(const Engine& engine, const std::vector<ByteRange>& ranges, bool readable) {
  int ends[2];
  if (pipe(ends) != 0) throw Error(ErrorCode::kInternal, "pipe");
  const bool all = std::all_of(ranges.begin(), ranges.end(), [&](const ByteRange& range) {
    return (write(ends[1], ArenaOf(engine) + range.begin, 1) == 1) == readable;
  });
  for (const int end : ends) close(end);
  return all;
}

std::string Refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return fmt::format("{}: {}", Name(error.code()), error.what());
  }
  return "not refused";
}

TEST_CASE("the memory of each part goes back, and all of it comes again", "[exec][release]") {
  for (const ArenaPart part : kArenaParts)
    test::RunEngines(CopiesCase(), Releasable(true), [&](Engine& engine, int rank) {
      INFO(Name(part));
      test::TrainStep(engine, CopiesCase(), rank, 0);
      const std::vector<ByteRange> pages = PagesOf(engine, part),
                                   all = PagesOf(engine, ArenaPart::kAll);
      std::byte* const arena = ArenaOf(engine);
      REQUIRE(BytesOf(pages) > 0);
      // Poison has touched each byte.
      REQUIRE(Resident(engine, all) == BytesOf(all));
      const MovedMemory gone = engine.Release(part);
      REQUIRE(gone.bytes == BytesOf(pages));
      REQUIRE(engine.released()->bytes() == BytesOf(pages));
      REQUIRE((gone.host_bytes > 0) == (part == ArenaPart::kAll));
      REQUIRE(Resident(engine, pages) == 0);
      REQUIRE(Resident(engine, all) == BytesOf(all) - BytesOf(pages));
      const MovedMemory back = engine.Acquire();
      REQUIRE(back.bytes == gone.bytes);
      REQUIRE(back.host_bytes == gone.host_bytes);
      REQUIRE(ArenaOf(engine) == arena);
      REQUIRE(Resident(engine, all) == BytesOf(all));
      REQUIRE(engine.released() == nullptr);
    });
}

TEST_CASE("whoever touches released memory ends the process", "[exec][release]") {
  test::RunEngines(CopiesCase(), Releasable(), [&](Engine& engine, int) {
    const std::byte* const era = ArenaOf(engine) + PagesOf(engine, ArenaPart::kEra).front().begin;
    const auto signal_of_a_read = [&] {
      const pid_t child = fork();
      if (child == 0) {
        signal(SIGSEGV, SIG_DFL);  // a sanitizer's or Catch2's
        const rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        static_cast<void>(*static_cast<const volatile std::byte*>(era));
        _exit(0);
      }
      int status = 0;
      waitpid(child, &status, 0);
      return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    };
    REQUIRE(signal_of_a_read() == 0);
    engine.Release(ArenaPart::kEra);
    REQUIRE(signal_of_a_read() == SIGSEGV);
    engine.Acquire();
    REQUIRE(signal_of_a_read() == 0);
  });
}

TEST_CASE("what needs released memory is refused, and what does not is served", "[exec][release]") {
  const test::PlanCase c = CopiesCase();
  for (const ArenaPart part : kArenaParts)
    test::RunEngines(c, Releasable(), [&](Engine& engine, int rank) {
      INFO(Name(part));
      test::TrainStep(engine, c, rank, 0);
      const std::vector<float> before = engine.ReadShard("master", kFirst);
      engine.Release(part);
      const std::string step = Refused([&] { test::TrainStep(engine, c, rank, 1); });
      CHECK(step == fmt::format("invalid_argument: the arena's memory is released ({}): Acquire() "
                                "brings it back",
                                Name(part)));
      CHECK(Refused([&] { engine.EvalLossSum(test::TokensOf(c, rank, 9)); }) == step);
      CHECK(Refused([&] { engine.BeginEra("eval"); }) == step);
      CHECK(Refused([&] { engine.LaunchInEra({.plan = "eval"}); }) == step);
      CHECK_THAT(Refused([&] { engine.Release(ArenaPart::kEra); }), Contains("released already"));
      const auto read = [&] { return engine.ReadShard("master", kFirst); };
      if (part == ArenaPart::kAll) {
        CHECK_THAT(Refused(read), Contains("the memory of master/") && Contains("Acquire()"));
        CHECK_THAT(Refused([&] { engine.ReadScalars(); }), Contains("the memory of scalars"));
        CHECK_THAT(Refused([&] { engine.InitWeights(1); }), Contains("the memory of master/"));
      } else {
        CHECK(read() == before);
        engine.WriteShard("master", kFirst, before);
      }
      engine.Acquire();
      CHECK(read() == before);
      CHECK_THAT(Refused([&] { engine.Acquire(); }), Contains("nothing of the arena's memory"));
      test::TrainStep(engine, c, rank, 1);
    });
}

TEST_CASE("steps in flight, and an arena that was not made for it, are refused",
          "[exec][release]") {
  const test::PlanCase c = CopiesCase();
  test::RunEngines(c, Releasable(), [&](Engine& engine, int rank) {
    engine.Enqueue(test::TokensOf(c, rank, 0), 0, 14);
    CHECK_THAT(Refused([&] { engine.Release(ArenaPart::kEra); }),
               Contains("1 steps are in flight"));
    engine.Collect();
    engine.Release(ArenaPart::kEra);
  });  // and it ends without its memory
  test::RunEngines(c, {}, [&](Engine& engine, int) {
    CHECK_THAT(Refused([&] { engine.Release(ArenaPart::kEra); }),
               Contains("EngineOptions::releasable"));
  });
}

TEST_CASE("what was captured is launched behind it, and nothing is captured or allocated anew",
          "[exec][release]") {
  test::PlanCase c = CopiesCase();
  for (const ArenaPart part : kArenaParts) {
    int captures = 0;
    bool moving = false;
    std::string allocated;
    test::RunEngines(
        c, Releasable(),
        [&](Engine& engine, int rank) {
          for (int64_t step = 0; step < 3; ++step) test::TrainStep(engine, c, rank, step);
          REQUIRE(captures == 1);
          const int64_t launches = engine.counters().graph_launches;
          moving = true;
          engine.Release(part);
          engine.Acquire();
          test::TrainStep(engine, c, rank, 3);
          moving = false;
          CHECK(captures == 1);
          CHECK(engine.counters().graph_launches == launches + 1);
        },
        [&](int) {
          return test::MakeCapturingDevice({.at_begin_capture = [&] { ++captures; },
                                            .at_allocation =
                                                [&](const std::string& label) {
                                                  if (moving && label != "mapped pages")
                                                    allocated += label + "; ";
                                                }});
        });
    CHECK(allocated == (part == ArenaPart::kAll ? "states of a released arena; " : ""));
  }
}

// The bits of loss, norm and weights, with each part released between some of the steps.
TEST_CASE("recorded steps find the same bits at the same addresses", "[exec][release]") {
  test::PlanCase c = CopiesCase();
  c.mesh = {1, 2};
  c.options.comm_scratch_bytes = 1 << 21;
  const auto bits = [&](const EngineOptions& options, bool releases) {
    std::vector<std::string> by_rank(2);
    test::RunEngines(c, options, [&](Engine& engine, int rank) {
      std::string& text = by_rank[static_cast<size_t>(rank)];
      for (int64_t step = 0; step < 6; ++step) {
        const StepScalars s = test::TrainStep(engine, c, rank, step);
        text += fmt::format("{:a} {:a} {}\n", s.loss, s.grad_norm, s.adam_t);
        if (!releases) continue;
        engine.Release(kArenaParts[step % 3]);
        engine.Acquire();
      }
      for (size_t f = 0; f < engine.layout().flats.size(); ++f)
        for (const char* slot : {"master", "adam_m", "adam_v"})
          for (const float value : engine.ReadShard(slot, FlatId{static_cast<int32_t>(f)}))
            text += fmt::format("{:a} ", value);
    });
    CHECK(by_rank[0].substr(0, by_rank[0].find('\n')) ==
          by_rank[1].substr(0, by_rank[1].find('\n')));
    return by_rank[0] + by_rank[1];
  };
  const std::string plain = bits({}, false);
  for (const bool checked : {false, true}) CHECK(bits(Releasable(checked), true) == plain);
  EngineOptions adversary = Releasable();
  adversary.adversary_seed = 5;
  CHECK(bits(adversary, true) == plain);
}

TEST_CASE("memory that one rank cannot have is had by none, and may be asked for again",
          "[exec][release]") {
  test::PlanCase c = CopiesCase();
  c.mesh = {1, 2};
  c.options.comm_scratch_bytes = 1 << 21;
  std::vector<std::string> refused(2), later(2);
  std::vector<int64_t> resident(2, -1), freed(2);
  std::vector<char> guarded(2), there(2);
  std::atomic<bool> none_left = false;
  test::RunEngines(
      c, Releasable(true),
      [&](Engine& engine, int rank) {
        const auto r = static_cast<size_t>(rank);
        test::TrainStep(engine, c, rank, 0);
        none_left = true;  // both say so before they meet
        later[r] = Refused([&] { engine.Release(ArenaPart::kAll); });
        engine.comms().world().Barrier();
        if (rank == 1) none_left = false;
        engine.comms().world().Barrier();
        engine.Release(ArenaPart::kCopies);
        engine.comms().world().Barrier();
        if (rank == 1) none_left = true;
        engine.comms().world().Barrier();
        refused[r] = Refused([&] { engine.Acquire(); });
        const std::vector<ByteRange> pages = PagesOf(engine, ArenaPart::kCopies);
        resident[r] = Resident(engine, pages);
        guarded[r] = AllAre(engine, pages, false);
        freed[r] = engine.released()->bytes();
        engine.comms().world().Barrier();
        if (rank == 1) none_left = false;
        engine.comms().world().Barrier();
        engine.Acquire();
        there[r] = AllAre(engine, pages, true);
        test::TrainStep(engine, c, rank, 1);
      },
      [&](int rank) {
        return test::MakeCapturingDevice({.at_allocation = [&, rank](const std::string& label) {
          if (rank == 1 && none_left && label != "timed event")
            throw Error(ErrorCode::kOutOfMemory, "nothing left for " + label);
        }});
      });
  for (size_t r = 0; r < 2; ++r) {
    CHECK(later[r] == "out_of_memory: rank 1: nothing left for states of a released arena");
    CHECK(refused[r] == "out_of_memory: rank 1: nothing left for mapped pages");
    CHECK(resident[r] == 0);
    CHECK(freed[r] > 0);
    CHECK(guarded[r]);
    CHECK(there[r]);
  }
}

}  // namespace
}  // namespace millrace
