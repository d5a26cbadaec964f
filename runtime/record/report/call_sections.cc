#include "runtime/record/report/call_sections.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/picture/html.h"
#include "runtime/picture/text.h"

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

namespace {

// What the supervisor of `millrace launch` has seen.
std::string RestartsTable(const RunRecord& r) {
  constexpr size_t kShown = 1000;
  if (r.failures.empty()) return "";
  std::string rows;
  for (size_t i = r.failures.size() - std::min(kShown, r.failures.size()); i < r.failures.size();
       ++i) {
    const auto& [failure, resumed_step, seconds] = r.failures[i];
    rows += Row({HtmlText(failure.time), HtmlText(failure.reason), std::to_string(failure.step),
                 failure.exit_code ? std::to_string(*failure.exit_code) : "",
                 !failure.restarts ? "given up"
                 : seconds         ? fmt::format("{:.2f} s", *seconds)
                                   : ""},
                "  nnn");
  }
  std::string html = "<h3>Restarts</h3>\n" + Table({"time, UTC", "why it ended", "after step",
                                                    "exit code", "until the next step"},
                                                   rows, "  nnn");
  if (r.failures.size() > kShown)
    html += Hint(fmt::format("The last {} of {}.", kShown, r.failures.size()));
  return html;
}

// What saves of the last call cost, from the lines of metrics.jsonl.
std::string SavesHint(const RunRecord& r) {
  std::vector<double> stalls;
  size_t failed = 0;
  for (const StepRow& row : r.rows) {
    if (std::isfinite(row.save_stall_ms)) stalls.push_back(row.save_stall_ms);
    failed += row.save_failed;
  }
  std::string html;
  if (failed > 0)
    html += Warning(
        fmt::format("{} could not be written.", failed == 1 ? "One" : std::to_string(failed)));
  if (stalls.empty()) return html;
  std::sort(stalls.begin(), stalls.end());
  return html + Hint(fmt::format("Training waited {} times for a save, the last one apart: {} in "
                                 "the median, {} at most.",
                                 stalls.size(), Milliseconds(stalls[stalls.size() / 2]),
                                 Milliseconds(stalls.back())));
}

}  // namespace

std::string CallsSection(const RunRecord& r) {
  std::string rows;
  for (const RecordedCall& call : r.history)
    rows +=
        Row({std::to_string(call.step),
             &call == &r.history.front() ? "the run began" : "resumed with another configuration",
             std::to_string(call.world), HtmlText(call.backend)},
            "n n");
  std::string html = rows.empty() ? "" : Table({"after step", "", "ranks", "backend"}, rows, "n n");
  if (const json& first = At(r.summary, {"first_step"}); first.is_number_integer())
    html += Hint(first == 0 ? "The last call began at the start."
                            : fmt::format("The last call went on after step {}.", TextOf(first)));
  html +=
      Hint("A call that resumes with the same configuration leaves no record, but for the last.");
  html += RestartsTable(r);
  std::string saved;
  for (const CheckpointEntry& entry : r.checkpoints) {
    double bytes = 0;
    if (entry.manifest)
      for (const CheckpointFile& file : entry.manifest->files)
        bytes += static_cast<double>(file.bytes);
    saved += Row(
        {std::to_string(entry.step), entry.manifest ? std::to_string(entry.manifest->world) : "",
         entry.manifest ? KnownBytes(bytes) : "",
         entry.usable() ? "usable" : HtmlText(entry.problem)},
        "nnn");
  }
  if (!r.checkpoints_problem.empty()) html += Warning(r.checkpoints_problem);
  html += "<h3>Checkpoints</h3>\n" + SavesHint(r);
  return html + (saved.empty()
                     ? Hint("None.")
                     : Table({"step", "ranks", "bytes", "manifest and sizes"}, saved, "nnn"));
}

}  // namespace millrace
