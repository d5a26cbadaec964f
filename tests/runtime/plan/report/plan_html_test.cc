#include "runtime/plan/report/plan_html.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "tests/runtime/plan/tiny_plan.h"

namespace millrace {
namespace {

using nlohmann::json;
using test::PlanFor;
using test::TinyPlan;

std::string PageOf(const TinyPlan& tiny) {
  const ReportInput input = tiny.Input(FindMachine("h100"));
  return PlanHtml(input, MakePlanReport(input));
}

json DataOf(const std::string& page) {
  const std::string open = "<script id=\"data\" type=\"application/json\">";
  const size_t begin = page.find(open) + open.size();
  return json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

size_t Count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST_CASE("the page holds every buffer, op and edge of the plan", "[plan][report]") {
  PlanOptions options = test::SmallBatch(3);
  options.allocator = GENERATE(AllocatorKind::kPacked, AllocatorKind::kDynamic);
  const TinyPlan tiny = PlanFor(test::SmallModel(2), {1, 2}, {}, options);
  const json all = DataOf(PageOf(tiny));
  const json& data = all["steps"]["planned"];

  REQUIRE(data["end"] == tiny.plan.timeline_end());
  REQUIRE(data["buffers"].size() == tiny.plan.buffers.size());
  for (size_t i = 0; i < tiny.plan.buffers.size(); ++i) {
    const PlanBuffer& buffer = tiny.plan.buffers[i];
    const json& row = data["buffers"][i];
    CAPTURE(buffer.name);
    REQUIRE(row[0] == buffer.name);
    REQUIRE(row[1] == buffer.bytes);
    REQUIRE(data["classes"][row[2].get<size_t>()] == Name(buffer.cls));
    REQUIRE(row[3].size() == 2 * buffer.live.size());
    for (size_t k = 0; k < buffer.live.size(); ++k) {
      REQUIRE(row[3][2 * k] == buffer.live[k].begin);
      REQUIRE(row[3][2 * k + 1] == buffer.live[k].end);
    }
    REQUIRE(row[4] == buffer.offsets);
  }
  REQUIRE(data["bodies"].size() == tiny.plan.bodies.size());
  for (size_t b = 0; b < tiny.plan.bodies.size(); ++b) {
    const Body& body = tiny.plan.bodies[b];
    REQUIRE(data["bodies"][b]["begin"] == body.begin);
    REQUIRE(data["bodies"][b]["ops"].size() == body.ops.size());
    for (size_t o = 0; o < body.ops.size(); ++o) {
      REQUIRE(data["bodies"][b]["ops"][o][2] == body.ops[o].label);
      REQUIRE(data["kinds"][data["bodies"][b]["ops"][o][0].get<size_t>()] ==
              OpName(body.ops[o].op));
    }
  }
  REQUIRE(data["schedule"].size() == tiny.plan.schedule.size());
  for (size_t e = 0; e < tiny.plan.schedule.size(); ++e) {
    const Entry& entry = tiny.plan.schedule[e];
    REQUIRE(data["schedule"][e]["edges"].size() == 3 * entry.edges.size());
    REQUIRE(data["schedule"][e]["t"].size() ==
            2 * tiny.plan.bodies[static_cast<size_t>(entry.body)].ops.size());
  }
  REQUIRE(data["arena"] == tiny.plan.arena_bytes);
  std::vector<int64_t> bytes(static_cast<size_t>(tiny.plan.timeline_end()));
  for (const PlanBuffer& buffer : tiny.plan.buffers)
    for (const Interval& live : buffer.live)
      for (int64_t at = live.begin; at < live.end; ++at)
        bytes[static_cast<size_t>(at)] += (buffer.bytes + 255) / 256 * 256;
  REQUIRE(data["peak"] == std::max_element(bytes.begin(), bytes.end()) - bytes.begin());
  REQUIRE(all["report"]["plan"]["hash"] == PlanHash(tiny.plan));
}

TEST_CASE("the page needs nothing but itself", "[plan][report]") {
  const std::string page = PageOf(PlanFor(test::SmallModel(1), {1, 2}, {}, test::SmallBatch(1)));
  for (const char* foreign : {"http:", "https:", "src=", "href=", "url(", "@import", "fetch(",
                              "XMLHttpRequest", "import("})
    REQUIRE_THAT(page, !Catch::Contains(foreign));
  REQUIRE_THAT(page, Catch::Contains("default-src &#39;none&#39;"));
  REQUIRE(Count(page, "<script") == 2);
  REQUIRE(Count(page, "</script>") == 2);
}

TEST_CASE("names cannot leave the embedded data", "[plan][report]") {
  TinyPlan tiny = PlanFor(test::SmallModel(1), {1, 1}, {}, test::SmallBatch(1));
  const std::string evil = "</script><!-- <b>\"'\\";
  tiny.plan.buffers[3].name = evil;
  tiny.plan.bodies[0].ops[0].label = evil;
  const std::string page = PageOf(tiny);
  REQUIRE(Count(page, "</script>") == 2);
  REQUIRE(Count(page, "<!--") == 0);
  REQUIRE(DataOf(page)["steps"]["planned"]["buffers"][3][0] == evil);
  REQUIRE(DataOf(page)["steps"]["planned"]["bodies"][0]["ops"][0][2] == evil);
}

TEST_CASE("32 layers and 16 microbatches stay under 5 MB", "[plan][report]") {
  const TinyPlan tiny = PlanFor(test::SmallModel(32), {1, 8}, {}, test::SmallBatch(16));
  REQUIRE(PageOf(tiny).size() < 5'000'000);
}

}  // namespace
}  // namespace millrace
