// A plan's trace and page with hostile names: what is written parses, and holds the
// names as they were given.
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/plan/cost/machine.h"
#include "runtime/plan/report/plan_html.h"
#include "runtime/plan/report/plan_trace.h"
#include "tests/fuzz/fuzz.h"
#include "tests/runtime/plan/tiny_plan.h"

using namespace millrace;
using nlohmann::json;

namespace {

size_t Count(const std::string& text, std::string_view part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// As a reader of JSON sees it: what is not UTF-8 has replacement characters.
json Sound(const std::string& text) {
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const test::TinyPlan original =
      test::PlanFor(test::SmallModel(1), {1, 1}, {}, test::SmallBatch(1));
  static test::TinyPlan tiny = original;
  fuzz::ByteSource in({reinterpret_cast<const char*>(data), size});
  std::string& label = tiny.plan.bodies[0].ops[0].label;
  Machine machine = test::SlowMachine();
  machine.title = in.Text();
  label = in.Text();
  tiny.plan.buffers[3].name = in.Text();
  tiny.plan.bodies[0].name = in.Text();
  const ReportInput input = tiny.Input(machine);

  const json trace = json::parse(PlanTrace(input));
  FUZZ_REQUIRE(trace["otherData"]["machine"] == Sound(machine.title));
  size_t named = 0;
  for (const json& event : trace["traceEvents"])
    named += event["ph"] == "X" && event["name"] == Sound(label);
  FUZZ_REQUIRE(label.empty() || named >= 1);

  const std::string page = PlanHtml(input, MakePlanReport(input));
  FUZZ_REQUIRE(Count(page, "</script") == 2 && Count(page, "<script") == 2 &&
               Count(page, "<!--") == 0);
  constexpr std::string_view kOpen = "<script id=\"data\" type=\"application/json\">";
  const size_t begin = page.find(kOpen) + kOpen.size();
  const json all = json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  const json& embedded = all["steps"]["planned"];
  FUZZ_REQUIRE(embedded["buffers"][3][0] == Sound(tiny.plan.buffers[3].name));
  FUZZ_REQUIRE(embedded["bodies"][0]["ops"][0][2] == Sound(label));
  FUZZ_REQUIRE(embedded["bodies"][0]["name"] == Sound(tiny.plan.bodies[0].name));
  return 0;
}
