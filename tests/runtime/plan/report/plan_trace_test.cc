#include "runtime/plan/report/plan_trace.h"

#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/runtime/plan/tiny_plan.h"

namespace millrace {
namespace {

using nlohmann::json;
using test::TinyPlan;

struct Slice {
  double begin, end;
};

TEST_CASE("the trace has every op on its stream's thread, in order of time", "[plan][report]") {
  const std::string machine = GENERATE("h100", "cpu");
  const TinyPlan tiny = test::PlanFor(test::SmallModel(2), {1, 2}, {}, test::SmallBatch(2));
  const json trace = json::parse(PlanTrace(tiny.Input(FindMachine(machine))));
  REQUIRE(trace["otherData"]["plan_hash"] == PlanHash(tiny.plan));

  size_t ops = 0, edges = 0;
  for (const Entry& entry : tiny.plan.schedule) {
    ops += tiny.plan.bodies[static_cast<size_t>(entry.body)].ops.size();
    edges += entry.edges.size();
  }
  std::map<int, std::string> threads;
  std::map<int, std::vector<Slice>> slices;
  std::map<int, std::pair<double, int>> starts, finishes;  // by flow id: time, thread
  double last = 0, last_counter = -1;
  size_t counters = 0;
  int64_t most = 0;
  for (const json& event : trace["traceEvents"]) {
    const std::string phase = event["ph"];
    REQUIRE(event["pid"] == 0);
    if (phase == "M") {
      if (event["name"] == "thread_name") threads[event["tid"]] = event["args"]["name"];
      continue;
    }
    const double at = event["ts"];
    REQUIRE(at >= last);
    last = at;
    if (phase == "X") {
      std::vector<Slice>& lane = slices[event["tid"]];
      // A microsecond is written with 17 digits: neighbours touch to rounding.
      if (!lane.empty()) REQUIRE(at >= lane.back().end - 1e-6);
      lane.push_back({at, at + event["dur"].get<double>()});
    } else if (phase == "s") {
      REQUIRE(starts.emplace(event["id"], std::pair<double, int>{at, event["tid"]}).second);
    } else if (phase == "f") {
      REQUIRE(event["bp"] == "e");
      REQUIRE(finishes.emplace(event["id"], std::pair<double, int>{at, event["tid"]}).second);
    } else {
      REQUIRE(phase == "C");
      REQUIRE(at > last_counter);
      last_counter = at;
      int64_t sum = 0;
      for (const auto& [cls, bytes] : event["args"].items()) sum += bytes.get<int64_t>();
      most = std::max(most, sum);
      ++counters;
    }
  }
  REQUIRE(threads == std::map<int, std::string>{{0, "compute"}, {1, "gather"}, {2, "reduce"}});
  REQUIRE(slices[0].size() + slices[1].size() + slices[2].size() == ops);
  REQUIRE(counters > 10);
  REQUIRE(most <= tiny.plan.arena_bytes);
  REQUIRE(most > tiny.plan.arena_bytes / 2);

  REQUIRE(edges > 0);
  REQUIRE(starts.size() == edges);
  REQUIRE(finishes.size() == edges);
  for (const auto& [id, start] : starts) {
    REQUIRE(start.first <= finishes.at(id).first);
    REQUIRE(start.second != finishes.at(id).second);
  }
}

}  // namespace
}  // namespace millrace
