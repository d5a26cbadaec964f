// What a hang is said to be, from what ranks show: a plan of two units whose ops are known by
// number.
#include "runtime/watch/stall_verdict.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "runtime/base/rank_list.h"

namespace millrace {
namespace {

using Catch::Contains;
using State = RankView::State;

// Ops 0 gather/a, 1 mm/a, 2 gather/b, 3 mm/b of a forward in microbatches 0 and 1 (4 to 7 are the
// second), then 8 adamw/a. The prologue is op 0 alone.
StepPlan SmallPlan() {
  const auto op = [](KernelOp kernel, StreamId stream, const char* label, int32_t unit) {
    PlanOp made;
    made.op = kernel;
    made.stream = stream;
    made.label = label;
    made.unit = UnitId{unit};
    return made;
  };
  StepPlan plan;
  plan.bodies.resize(3);
  plan.bodies[0].name = "forward";
  plan.bodies[0].ops = {op(AllGatherOp<View>{}, StreamId::kGather, "gather/a", 0),
                        op(MatmulOp<View>{}, StreamId::kCompute, "mm/a", 0),
                        op(AllGatherOp<View>{}, StreamId::kGather, "gather/b", 1),
                        op(MatmulOp<View>{}, StreamId::kCompute, "mm/b", 1)};
  plan.bodies[1].name = "update";
  plan.bodies[1].phase = Phase::kUpdate;
  plan.bodies[1].ops = {op(AdamWOp<View>{}, StreamId::kCompute, "adamw/a", 0)};
  plan.bodies[2].name = "prologue";
  plan.bodies[2].ops = {op(AllGatherOp<View>{}, StreamId::kGather, "gather/a", 0)};
  plan.schedule = {{0, 0, {}}, {0, 1, {}}, {1, 1, {}}};
  plan.prologue = {{2, 0, {}}};
  return plan;
}

const StepPlan kPlan = SmallPlan();
const PlanNames kNames{{&kPlan}, {"a", "b"}};

ProgressReading HostAt(uint64_t run, int64_t index, bool collective) {
  ProgressReading reading;
  reading.phase = RunPhase::kTraining;
  reading.runs = run;
  reading.issuing = true;
  reading.index = index;
  reading.in_collective = collective;
  reading.host_run = {0, false, static_cast<int64_t>(run) + 9};
  return reading;
}

// Words of compute, gather, reduce.
ProgressReading DeviceAt(uint64_t begun, uint64_t done, std::array<uint64_t, kStreams> words) {
  ProgressReading reading;
  reading.runs = begun;
  reading.has_device = true;
  reading.device[kRunBegunWord] = begun;
  reading.device[kRunDoneWord] = done;
  std::copy(words.begin(), words.end(), reading.device + kFirstStreamWord);
  reading.device_run = reading.host_run = {0, false, static_cast<int64_t>(begun) + 9};
  return reading;
}

RankView Rank(int rank, const ProgressReading& reading, State state = State::kAlive,
              char process = '?') {
  RankView view;
  view.state = state;
  view.process = process;
  view.record.rank = rank;
  view.record.pid = 100 + rank;
  std::strcpy(view.record.host, "elm");
  view.record.reading = reading;
  return view;
}

TEST_CASE("a host's position is its op, with unit, stream, step, microbatch and body") {
  const Position second = PositionOf(HostAt(2, 6, true), kNames);
  REQUIRE(second.text ==
          "all_gather of unit b (op gather/b, stream gather over shard, step 12, microbatch 1, "
          "forward)");
  REQUIRE(second.waits);
  const Position update = PositionOf(HostAt(2, 8, false), kNames);
  REQUIRE(update.text ==
          "adamw of unit a (op adamw/a, stream compute, step 12, microbatch 1, update)");
  REQUIRE_FALSE(update.waits);
  ProgressReading prologue = HostAt(1, 0, true);
  prologue.host_run.prologue = true;
  REQUIRE_THAT(PositionOf(prologue, kNames).text,
               Contains("gather/a, stream gather over shard, before step 11"));
  // Behind what a plan holds there is still a number.
  REQUIRE(PositionOf(HostAt(1, 9, false), kNames).text == "op 9 of step 11");
}

TEST_CASE("between runs a rank is in its phase, and its last op is named") {
  ProgressReading reading = HostAt(3, 8, false);
  reading.issuing = false;
  reading.phase = RunPhase::kReadingTokens;
  reading.detail = 13;
  const Position position = PositionOf(reading, kNames);
  REQUIRE_THAT(
      position.text,
      Contains("the phase \"reading tokens\" of step 14; its last op was adamw of unit a"));
  REQUIRE(position.run == 4);  // it has done run 3
}

TEST_CASE("a device's position is the collective that was issued first, else where it computes") {
  const uint64_t computes_a = StreamWord(1, StreamMark::kComputing);
  const auto text = [](const ProgressReading& reading) { return PositionOf(reading, kNames).text; };
  REQUIRE_THAT(text(DeviceAt(1, 0, {computes_a, StreamWord(2, StreamMark::kInCollective), 0})),
               Contains("all_gather of unit b (op gather/b"));
  REQUIRE_THAT(text(DeviceAt(1, 0, {computes_a, StreamWord(2, StreamMark::kPassedCollective), 0})),
               Contains("the computation of unit a (from op mm/a on"));
  // A collective on the compute stream, and what is behind it there.
  REQUIRE_THAT(text(DeviceAt(1, 0, {StreamWord(2, StreamMark::kInCollective), 0, 0})),
               Contains("all_gather of unit b (op gather/b"));
  REQUIRE_THAT(text(DeviceAt(1, 0, {StreamWord(2, StreamMark::kPassedCollective), 0, 0})),
               Contains("the computation of unit b (from op gather/b on"));
  REQUIRE_THAT(text(DeviceAt(1, 0,
                             {computes_a, StreamWord(6, StreamMark::kInCollective),
                              StreamWord(4, StreamMark::kInCollective)})),
               Contains("gather/a, stream gather over shard, step 11, microbatch 1"));
  REQUIRE(text(DeviceAt(1, 0, {0, 0, 0})) == "step 11, before its first mark");
  // Done: the words no longer say anything, the host's phase does.
  REQUIRE_THAT(text(DeviceAt(1, 1, {computes_a, 0, 0})), Contains("the phase"));
  // Issued, and the device has not come to it.
  ProgressReading queued = DeviceAt(1, 1, {computes_a, 0, 0});
  queued.runs = 2;
  REQUIRE_THAT(text(queued), Contains("not begun by the device"));
}

TEST_CASE("a silent rank is named with process and reason, and where it was last seen") {
  const std::string text =
      StallVerdict({Rank(0, HostAt(2, 2, true)), Rank(1, HostAt(2, 1, false), State::kSilent, 'T'),
                    Rank(2, HostAt(2, 2, true))},
                   kNames, 21);
  REQUIRE(text ==
          "no progress for 21 s (execution.watchdog_s): rank 1 (pid 101 on elm) does not run: its "
          "process is stopped by a signal (SIGSTOP); it was last seen in matmul of unit a (op "
          "mm/a, stream compute, step 12, microbatch 0, forward); ranks 0, 2 wait in all_gather of "
          "unit b (op gather/b, stream gather over shard, step 12, microbatch 0, forward)");
}

TEST_CASE("the rank that is furthest behind is named, whatever its number") {
  // In the same run, a run behind, and outside of runs.
  for (const ProgressReading& behind :
       {HostAt(2, 1, false), HostAt(1, 8, false),
        DeviceAt(1, 0, {StreamWord(1, StreamMark::kComputing), 0, 0})}) {
    const std::string text = StallVerdict(
        {Rank(0, HostAt(2, 2, true)), Rank(1, behind), Rank(2, HostAt(2, 2, true))}, kNames, 20);
    REQUIRE_THAT(text,
                 Contains(": rank 1 (pid 101 on elm) is in " + PositionOf(behind, kNames).text +
                          " and holds the others up; ranks 0, 2 wait in all_gather of unit b"));
  }
}

TEST_CASE("a collective that some have passed or left out is said to be that") {
  const std::string text =
      StallVerdict({Rank(0, HostAt(2, 2, true)), Rank(1, HostAt(2, 6, true))}, kNames, 20);
  REQUIRE_THAT(
      text,
      Contains("rank 0 (pid 100 on elm) waits in all_gather of unit b (op gather/b, stream "
               "gather over shard, step 12, microbatch 0, forward), which others have passed, or "
               "left out; rank 1 waits in all_gather of unit b (op gather/b, stream gather over "
               "shard, step 12, microbatch 1, forward)"));
}

TEST_CASE(
    "ranks in one and the same collective wait for each other; ranks that have ended are left "
    "out") {
  REQUIRE_THAT(StallVerdict({Rank(0, HostAt(2, 2, true)), Rank(1, HostAt(2, 2, true))}, kNames, 20),
               Contains("all ranks wait for each other in all_gather of unit b"));
  const std::string text = StallVerdict({Rank(0, HostAt(1, 0, true), State::kGone),
                                         Rank(1, HostAt(2, 2, true)), Rank(2, HostAt(2, 1, false))},
                                        kNames, 20);
  REQUIRE_THAT(text,
               Contains("rank 2 (pid 102 on elm) is in matmul of unit a") && !Contains("rank 0"));
}

TEST_CASE("ranks are listed by runs of numbers") {
  REQUIRE(RankList({}).empty());
  REQUIRE(RankList({7}) == "7");
  REQUIRE(RankList({0, 1, 2, 4, 6, 7}) == "0-2, 4, 6-7");
  REQUIRE(RanksText({7}) == "rank 7");
  REQUIRE(RanksText({0, 1, 4}) == "ranks 0-1, 4");
}

}  // namespace
}  // namespace millrace
