// The pictures of a run's report: that every op and every buffer is in one, where it belongs, and
// that what files say stays text.
#include <fmt/format.h>

#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/plan/report/plan_text.h"
#include "runtime/record/report/memory_map.h"
#include "runtime/record/report/planned_step.h"
#include "runtime/record/report/recorded_timeline.h"
#include "runtime/record/report/timeline_picture.h"
#include "tests/runtime/plan/tiny_plan.h"

using namespace millrace;
using millrace::test::PlanFor;
using millrace::test::SlowMachine;
using millrace::test::SmallBatch;
using millrace::test::SmallModel;

namespace {

struct Rect {
  std::string style, title;
  double x = 0, y = 0, width = 0, height = 0;
};

std::vector<Rect> RectsOf(const std::string& html) {
  static const std::regex kRect(
      R"re(<rect class="([^"]*)" x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)"><title>([^<]*)</title></rect>)re");
  std::vector<Rect> rects;
  for (std::sregex_iterator at(html.begin(), html.end(), kRect), end; at != end; ++at)
    rects.push_back({(*at)[1], (*at)[6], std::stod((*at)[2]), std::stod((*at)[3]),
                     std::stod((*at)[4]), std::stod((*at)[5])});
  return rects;
}

// How many a rectangle stands for, by its title.
int64_t CountOf(const Rect& rect, const std::string& what) {
  std::smatch found;
  const std::regex many("^([0-9]+) " + what + ", ");
  return std::regex_search(rect.title, found, many) ? std::stoll(found[1]) : 1;
}

int64_t SumOf(const std::vector<Rect>& rects, const std::string& what) {
  int64_t sum = 0;
  for (const Rect& rect : rects) sum += CountOf(rect, what);
  return sum;
}

TimelineOp Op(const std::string& label, const std::string& kind, StreamId stream, double begin,
              double end) {
  return {label, kind, stream, begin, end};
}

test::TinyPlan Tiny() {
  PlanOptions options = SmallBatch(2);
  options.reshard = Reshard::kAfterForward;
  return PlanFor(SmallModel(2), {1, 2}, {}, options);
}

}  // namespace

TEST_CASE("bars lie where and as long as their ops") {
  const std::string html = TimelineHtml({"t",
                                         "Title <b>",
                                         {Op("up", "matmul", StreamId::kCompute, 0, 4),
                                          Op("weights", "all_gather", StreamId::kGather, 1, 2),
                                          Op("", "adamw", StreamId::kCompute, 5, 8),
                                          Op("grads", "reduce_scatter", StreamId::kReduce, 4, 5)},
                                         10});
  const std::vector<Rect> rects = RectsOf(html);
  REQUIRE(rects.size() == 4);
  std::map<std::string, Rect> by_title;
  for (const Rect& rect : rects) by_title[rect.title] = rect;
  const auto check = [&](const std::string& title, const std::string& style, int lane, double x,
                         double width) {
    INFO(title);
    REQUIRE(by_title.count(title) == 1);
    const Rect& rect = by_title[title];
    CHECK(rect.style == style);
    CHECK(rect.x == Approx(x));
    CHECK(rect.width == Approx(width));
    CHECK(rect.y >= 20 * lane);
    CHECK(rect.y + rect.height <= 20 * (lane + 1));
  };
  check("up\nmatmul\nat 0 ms for 4 ms", "k0", 0, 0, 400);
  check("adamw\nadamw\nat 5 ms for 3 ms", "k2", 0, 500, 300);
  check("weights\nall_gather\nat 1 ms for 1 ms", "k4", 1, 100, 100);
  check("grads\nreduce_scatter\nat 4 ms for 1 ms", "k1", 2, 400, 100);
  CHECK(html.find("Title &lt;b&gt;") != html.npos);
  CHECK(html.find("4 ops, drawn as 4 bars; the last one ends at 8 ms.") != html.npos);
}

TEST_CASE("every op of a plan is in one bar of its stream") {
  const test::TinyPlan tiny = Tiny();
  const Machine machine = SlowMachine();
  const PlannedStep step = PlannedStepOf(tiny.Input(machine));
  size_t ops = 0;
  for (const Entry& entry : tiny.plan.schedule)
    ops += tiny.plan.bodies[static_cast<size_t>(entry.body)].ops.size();
  REQUIRE(step.ops.size() == ops);
  CHECK(EndOf(step.ops) == Approx(1e3 * tiny.Report(machine).time.step));
  CHECK(step.hash == PlanHash(tiny.plan));
  const std::vector<Rect> rects = RectsOf(TimelineHtml({"t", "", step.ops, EndOf(step.ops)}));
  CHECK(SumOf(rects, "ops") == static_cast<int64_t>(ops));
  std::array<int64_t, kStreams> in_lane{}, wanted{};
  for (const Rect& rect : rects) {
    CHECK(rect.x >= 0);
    CHECK(rect.x + rect.width <= 1000.01);
    in_lane.at(static_cast<size_t>(rect.y / 20)) += CountOf(rect, "ops");
  }
  for (const TimelineOp& op : step.ops) ++wanted[static_cast<size_t>(op.stream)];
  CHECK(in_lane == wanted);
  CHECK(wanted[1] > 0);
}

TEST_CASE("narrow ops are drawn together and counted, wide ones are not") {
  std::vector<TimelineOp> ops;
  double at = 0;
  for (int i = 0; i < 20000; ++i, at += 0.01)
    ops.push_back(Op(fmt::format("op{}", i), i % 2 == 0 ? "matmul" : "norm", StreamId::kCompute, at,
                     at + 0.009));
  ops.push_back(Op("long", "attention", StreamId::kCompute, at, at + 50));
  const std::string html = TimelineHtml({"t", "", ops, at + 50});
  const std::vector<Rect> rects = RectsOf(html);
  CHECK(rects.size() <= kMostBars);
  CHECK(rects.size() > kMostBars / 8);
  CHECK(SumOf(rects, "ops") == 20001);
  CHECK(rects.back().title == "long\nattention\nat 200 ms for 50 ms");
  CHECK(rects.back().width == Approx(200));
  CHECK(rects.front().title.find(" ops, op0 to op") != std::string::npos);
  CHECK(rects.front().title.find("products, rest") != std::string::npos);
  CHECK(html.size() < 100'000);

  // Of one kind and close by: one bar; far apart or next to a wide one: two.
  const std::vector<Rect> close =
      RectsOf(TimelineHtml({"t",
                            "",
                            {Op("a", "norm", StreamId::kCompute, 100, 100.1),
                             Op("b", "add", StreamId::kCompute, 100.2, 100.3),
                             Op("c", "norm", StreamId::kCompute, 500, 500.1),
                             Op("d", "norm", StreamId::kCompute, 500.1, 700)},
                            1000}));
  REQUIRE(close.size() == 3);
  CHECK(close[0].title == "2 ops, a to b\nrest\nat 100 ms for 0.3 ms, busy 0.2 ms");
}

TEST_CASE("pictures of nothing, of no time and of hostile names") {
  CHECK(RectsOf(TimelineHtml({"t", "", {}, 0})).empty());
  std::vector<TimelineOp> instants(3 * kMostBars, Op("x", "norm", StreamId::kReduce, 0, 0));
  CHECK(SumOf(RectsOf(TimelineHtml({"t", "", instants, 0})), "ops") ==
        3 * static_cast<int64_t>(kMostBars));
  const std::string html = TimelineHtml(
      {"t", "", {Op("</title><script>alert(1)</script>", "\x01\"&", StreamId::kCompute, 0, 1)}, 1});
  CHECK(html.find("<script") == html.npos);
  CHECK(html.find("&lt;/title&gt;&lt;script&gt;") != html.npos);
  CHECK(html.find("\xEF\xBF\xBD&quot;&amp;") != html.npos);

  CHECK(MemoryMapHtml({}).empty());
  const std::string map = MemoryMapHtml(
      {100, 10, 0, {{"<b>", 0, 10}}, {{"</title><script>", BufferClass::kSlots, 100, 0, 0, 10}}});
  CHECK(map.find("<script") == map.npos);
  CHECK(map.find("<b>") == map.npos);
}

TEST_CASE("a buffer's stay lies at its bytes and its ops") {
  const ArenaMap map{1000,
                     100,
                     30,
                     {{"forward", 0, 60}, {"update", 60, 100}},
                     {{"weights", BufferClass::kParameters, 500, 0, 0, 100},
                      {"x", BufferClass::kActivations, 250, 500, 20, 40},
                      {"x", BufferClass::kActivations, 250, 750, 50, 60}}};
  const std::string html = MemoryMapHtml(map);
  const std::vector<Rect> rects = RectsOf(html);
  REQUIRE(rects.size() == 3);
  const auto check = [](const Rect& rect, const char* style, double x, double y, double width,
                        double height) {
    CHECK(rect.style == style);
    CHECK(rect.x == Approx(x).margin(0.01));
    CHECK(rect.y == Approx(y).margin(0.01));
    CHECK(rect.width == Approx(width));
    CHECK(rect.height == Approx(height));
  };
  check(rects[0], "k0", 0, 160, 1000, 160);
  check(rects[1], "k3", 200, 80, 200, 80);
  check(rects[2], "k3", 500, 0, 100, 80);
  CHECK(rects[1].title == "x\nactivations, 250 B\nat byte 500\nops 20 to 39");
  CHECK(html.find("<line class=\"bad\" x1=\"300.00\"") != html.npos);
  CHECK(html.find("<line class=\"call\" x1=\"600.00\"") != html.npos);
  CHECK(html.find("begin of update") != html.npos);
  CHECK(html.find("forward (0 to 59), update (60 to 99)") != html.npos);
  CHECK(html.find("3 stays of buffers, drawn as 3 rectangles; most bytes live at op 30") !=
        html.npos);
}

TEST_CASE("every stay of a plan's buffers is in one rectangle within the arena") {
  const test::TinyPlan tiny = Tiny();
  const PlannedStep step = PlannedStepOf(tiny.Input(SlowMachine()));
  int64_t stays = 0, live_at_peak = 0;
  for (const PlanBuffer& buffer : tiny.plan.buffers)
    stays += static_cast<int64_t>(buffer.live.size());
  CHECK(static_cast<int64_t>(step.map.stays.size()) == stays);
  for (const BufferStay& stay : step.map.stays) {
    CHECK(stay.offset + stay.bytes <= tiny.plan.arena_bytes);
    if (stay.begin <= step.map.peak && step.map.peak < stay.end)
      live_at_peak += (stay.bytes + 255) / 256 * 256;
  }
  int64_t at_peak = 0;
  for (const int64_t bytes : step.at_peak) at_peak += bytes;
  CHECK(live_at_peak == at_peak);
  const std::vector<Rect> rects = RectsOf(MemoryMapHtml(step.map));
  CHECK(rects.size() > 10);
  CHECK(SumOf(rects, "stays") == stays);
  for (const Rect& rect : rects) {
    CHECK(rect.x >= 0);
    CHECK(rect.y >= 0);
    CHECK(rect.x + rect.width <= 1000.01);
    CHECK(rect.y + rect.height <= 320.01);
  }
}

TEST_CASE("small stays are drawn together and counted") {
  ArenaMap map{1 << 20, 5000, 0, {}, {}};
  for (int64_t i = 0; i < 5000; ++i)
    map.stays.push_back({fmt::format("b{}", i),
                         i % 2 == 0 ? BufferClass::kActivations : BufferClass::kWorkspaces, 64,
                         i % 16384 * 64 % (1 << 20), i, i + 1});
  map.stays.push_back({"large", BufferClass::kParameters, 1 << 19, 1 << 19, 0, 5000});
  const std::string html = MemoryMapHtml(map);
  const std::vector<Rect> rects = RectsOf(html);
  CHECK(rects.size() <= kMostStays);
  CHECK(rects.size() > kMostStays / 8);
  CHECK(SumOf(rects, "stays") == 5001);
  CHECK(html.find("large\nparameters, " + BytesText(1 << 19)) != html.npos);
}

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
  REQUIRE(line.ops.size() == 2);
  const TimelineOp& op = line.ops.at(1).at(0);
  CHECK(op.label == "h.0/mlp.up");
  CHECK(op.kind == "matmul");
  CHECK(op.stream == StreamId::kReduce);
  CHECK(op.begin == Approx(2));
  CHECK(op.end == Approx(3));
  CHECK(line.ops.at(0).at(0).begin == 0);
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
      {TimelineText(Event("0", "3", "1", "1")), "no rank 0, stream 3"},
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
