#include "runtime/record/report/call_sections.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/plan/report/plan_text.h"
#include "runtime/record/report/chart.h"
#include "runtime/record/report/html_parts.h"

namespace millrace {

using nlohmann::json;

// Each key with its value at first, and what later calls changed.
std::string ConfigurationSection(const RunRecord& r) {
  if (r.history.empty()) return Hint("Not recorded.");
  // The row, and whether anyone has set it.
  std::map<std::string, std::pair<std::string, bool>> keys;
  std::map<std::string, std::string> in_force;
  for (const RecordedCall& call : r.history)
    for (const auto& [key, value] : call.keys) {
      const auto [before, fresh] = in_force.try_emplace(key, value.value);
      if (!fresh && before->second == value.value) continue;
      before->second = value.value;
      const bool first = &call == &r.history.front();
      auto& [rows, set] = keys[key];
      rows += Row({Code(key),
                   (first ? "" : fmt::format("after step {}: ", call.step)) + Code(value.value),
                   HtmlText(value.origin)});
      set = set || value.origin != "default";
    }
  std::string given, defaults;
  for (const auto& [key, row] : keys) (row.second ? given : defaults) += row.first;
  const std::vector<std::string> heads = {"key", "value", "origin"};
  return (given.empty() ? Hint("Every key has its default.") : Table(heads, given)) +
         (defaults.empty()
              ? ""
              : "<details><summary>Defaults</summary>\n" + Table(heads, defaults) + "</details>\n");
}

std::string HashesSection(const RunRecord& r) {
  std::string stages, hashes;
  for (const RecordedCall& call : r.history)
    for (const std::string_view name : kPlanStageNames)
      if (const auto stage = call.plan_stages.find(std::string(name));
          stage != call.plan_stages.end())
        stages += Row({std::to_string(call.step), HtmlText(name), Code(stage->second)}, "n");
  for (const std::string_view name : kFinalHashNames)
    if (const json& hash = At(r.summary, {std::string(name).c_str()});
        hash.is_string() && !TextOf(hash).empty())
      hashes += Row({HtmlText(name), Code(TextOf(hash))});
  return (stages.empty() ? Hint("Plan stages were not recorded.")
                         : Table({"after step", "stage", "hash"}, stages, "n")) +
         (hashes.empty() ? "" : "<h3>At the end</h3>\n" + Table({"", "hash"}, hashes));
}

namespace {

// Of the last call, and what earlier ones had otherwise.
std::string RecordedEnvironment(const RunRecord& r) {
  const RecordedCall& last = r.history.back();
  std::string rows, before;
  for (const auto& [name, value] : last.environment) rows += Row({HtmlText(name), HtmlText(value)});
  for (const RecordedCall& call : r.history)
    for (const auto& one : call.environment)
      if (std::find(last.environment.begin(), last.environment.end(), one) ==
          last.environment.end())
        before += Row({std::to_string(call.step), HtmlText(one.first), HtmlText(one.second)}, "n");
  if (rows.empty()) rows = Row({"host and libraries", "not recorded"});
  return Table({"", "last call"}, rows) + (before.empty()
                                               ? ""
                                               : "<h3>Otherwise in earlier calls</h3>\n" +
                                                     Table({"after step", "", ""}, before, "n"));
}

}  // namespace

std::string EnvironmentSection(const RunRecord& r) {
  std::string rows;
  if (!r.history.empty()) {
    rows += Row({"backend", HtmlText(r.history.back().backend)});
    rows += Row({"ranks", std::to_string(r.history.back().world)});
  }
  if (const json& machine = At(r.summary, {"predicted", "machine"}); machine.is_string())
    rows += Row({"machine that predictions and MFU are for", HtmlText(TextOf(machine))});
  if (const json& seconds = At(r.summary, {"seconds"}); seconds.is_number())
    rows += Row({"time of the last call", HtmlText(SecondsText(seconds.get<double>()))});
  std::string html = rows.empty() ? "" : Table({"", ""}, rows);
  if (std::any_of(r.history.begin(), r.history.end(),
                  [](const auto& call) { return !call.environment.empty(); }))
    return html + RecordedEnvironment(r);
  return html + Hint(
                    "The run recorded no host names and library versions; millrace doctor prints "
                    "those of a host.");
}

}  // namespace millrace
