// A step that a run has timed, as its file says and as its picture has it.
#include "runtime/record/report/recorded_timeline.h"

#include <fmt/core.h>

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

using namespace millrace;

namespace {

std::string TimelineText(const std::string& events, const std::string& other = R"("step": 3, )") {
  return R"({"displayTimeUnit": "ms", "otherData": {"plan_hash": "0123", "device": "cpu", "ranks": 2, )" +
         other + R"("trace": {"step": "eager", "event_nodes": 0}}, "traceEvents": [)" + events +
         "]}";
}
const std::string kName =
    R"({"ph": "M", "pid": 0, "tid": 1, "name": "thread_name", "args": {"name": "gather"}})";

std::string Event(const std::string& pid, const std::string& tid, const std::string& ts,
                  const std::string& dur,
                  const std::string& more = R"("name": "h.0/mlp.up", "cat": "matmul")") {
  return fmt::format(R"({{"ph": "X", "pid": {}, "tid": {}, "ts": {}, "dur": {}, {}}})", pid, tid,
                     ts, dur, more);
}

}  // namespace

TEST_CASE("a recorded timeline is read from its first op on") {
  const RecordedTimeline line =
      ParseTimeline(TimelineText(kName + "," + Event("1", "2", "5000.5", "1000") + "," +
                                 Event("0", "0", "3000.5", "0")),
                    "t.json");
  CHECK(line.plan_hash == "0123");
  CHECK(line.device == "cpu");
  CHECK(line.how == "eager");
  CHECK(line.step == 3);
  CHECK(line.ranks == 2);
  REQUIRE(line.steps.size() == 2);
  const StepPicture& step = line.steps.at(1);
  REQUIRE(step.bodies.size() == 1);
  REQUIRE(step.bodies[0].ops.size() == 1);
  const StepPicture::Op& op = step.bodies[0].ops[0];
  CHECK(op.label == "h.0/mlp.up");
  CHECK(op.kind == "matmul");
  CHECK(op.stream == StreamId::kReduce);
  CHECK(op.seconds == Approx(1e-3));
  REQUIRE(step.schedule.size() == 1);
  REQUIRE(step.schedule[0].times.size() == 2);
  CHECK(step.schedule[0].times[0] == Approx(2e-3));
  CHECK(step.schedule[0].times[1] == Approx(3e-3));
  CHECK(SecondsOf(step) == step.schedule[0].times[1]);
  CHECK(line.steps.at(0).schedule[0].times[0] == 0);
  CHECK(!ParseTimeline(TimelineText("", ""), "t.json").step);
}

TEST_CASE("a damaged timeline is refused by name") {
  const std::string good = Event("0", "0", "1", "1");
  REQUIRE_NOTHROW(ParseTimeline(TimelineText(good), "t.json"));
  const std::vector<std::pair<std::string, std::string>> damaged = {
      {"", "not valid JSON"},
      {"[]", "otherData"},
      {TimelineText(good).substr(0, 200), "not valid JSON"},
      {TimelineText(Event("2", "0", "1", "1")), "no rank 2"},
      {TimelineText(Event("-1", "0", "1", "1")), "pid"},
      {TimelineText(Event("0", "4", "1", "1")), "no rank 0, stream 4"},
      {TimelineText(Event("0", "0", "-1", "1")), "\"ts\" is not a time"},
      {TimelineText(Event("0", "0", "1", "null")), "\"dur\" is not a time"},
      {TimelineText(Event("0", "0", "1e300", "1")), "\"ts\" is not a time"},
      {TimelineText(Event("0", "0", "1e999", "1")), "not valid JSON"},
      {TimelineText(Event("0", "0", "1", "1", R"("name": "x")")), "\"cat\" is missing"},
      {TimelineText(Event("0", "0", "1", "1", R"("name": 1, "cat": "x")")),
       "\"name\" must be a string"},
      {TimelineText(
           Event("0", "0", "1", "1", R"("name": ")" + std::string(2000, 'x') + R"(", "cat": "x")")),
       "has 2000 bytes"},
      {TimelineText(R"({"ph": "B"})"), "traceEvents[0]"},
      {TimelineText(good, R"("step": -1, )"), "step"},
      {TimelineText(good, R"("ranks": 2, )"), "given twice"},
  };
  for (const auto& [text, what] : damaged) {
    INFO(text);
    try {
      ParseTimeline(text, "t.json");
      FAIL("read");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kData);
      CHECK_THAT(error.what(), Catch::Contains("t.json") && Catch::Contains(what));
    }
  }
}
