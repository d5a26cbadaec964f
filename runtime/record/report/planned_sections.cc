#include "runtime/record/report/planned_sections.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/picture/html.h"
#include "runtime/picture/text.h"

namespace millrace {
namespace {

using nlohmann::json;

// One scale for both where it shows both.
constexpr double kOneScale = 4;
constexpr int64_t kRanksShown = 4;

std::string TimelinePlace(Page& page, const std::string& step, const std::string& title,
                          double until) {
  const std::string id = "timeline-" + step;
  page.pictures.push_back({Picture::Kind::kTimeline, id, step, until, {}});
  return fmt::format("<div id=\"{}\"><h3>{}</h3></div>\n", id, HtmlText(title));
}

std::string MeasuredTimelines(const RecordedTimeline& line, double until, Page& page) {
  std::string html;
  for (int64_t rank = 0; rank < std::min(line.ranks, kRanksShown); ++rank) {
    const std::string step = fmt::format("rank-{}", rank);
    const auto measured = line.steps.find(rank);
    page.steps[step] = measured == line.steps.end() ? StepPicture() : measured->second;
    html += TimelinePlace(page, step,
                          fmt::format("Measured{} on {}, {}, rank {}",
                                      line.step ? fmt::format(" in step {}", *line.step) : "",
                                      line.device, line.how, rank),
                          until);
  }
  if (line.ranks > kRanksShown)
    html += Hint(fmt::format("{} more ranks are in timeline.json.", line.ranks - kRanksShown));
  return html;
}

}  // namespace

std::string MemorySection(const RunRecord& r, const std::optional<PlannedStep>& planned) {
  std::string rows;
  const auto add = [&](const char* what, double value) {
    if (std::isfinite(value)) rows += Row({what, KnownBytes(value)}, " n");
  };
  add("arena, predicted", NumberOf(At(r.summary, {"predicted", "arena_bytes"})));
  add("arena, allocated", NumberOf(At(r.summary, {"measured", "arena_bytes"})));
  add("lower bound of the training plan",
      NumberOf(At(r.summary, {"predicted", "lower_bound_bytes"})));
  add("device, predicted", NumberOf(At(r.summary, {"predicted", "device_bytes"})));
  add("device, measured", NumberOf(At(r.summary, {"measured", "device_bytes"})));
  add("process before the arena", NumberOf(At(r.summary, {"resident_before_arena_bytes"})));
  add("most in use, last call", r.rows.empty() ? StepRow::kUnknown : r.rows.back().peak_bytes);
  std::string html = Hint("Of one rank.") + (rows.empty() ? "" : Table({"", "bytes"}, rows, " n"));
  if (!planned)
    return html +
           Hint(
               "By class: not known. The run recorded no configuration, or this version of the "
               "program plans it otherwise.");
  std::string classes;
  int64_t largest = 1;
  for (const PlannedStep::Class& c : planned->classes) largest = std::max(largest, c.most);
  for (const auto& [name, most, at_peak] : planned->classes) {
    if (most == 0) continue;
    classes += Row({HtmlText(name), BytesText(most), BytesText(at_peak),
                    fmt::format("<i style=\"width:{:.1f}%\"></i>",
                                100.0 * static_cast<double>(most) / static_cast<double>(largest))},
                   " nn");
    classes.replace(classes.rfind("<td><i"), 4, "<td class=\"bar\">");
  }
  return html + "<h3>Planned for a training step</h3>\n" +
         Table({"class", "most", "at the peak of all", ""}, classes, " nn") +
         Hint(fmt::format("Arena of the training plan: {}; lower bound {}.",
                          BytesText(planned->arena), BytesText(planned->lower_bound)));
}

std::string MemoryMapSection(const std::optional<PlannedStep>& planned, Page& page) {
  if (!planned || planned->arena <= 0) return Hint("Not known, as memory by class.");
  page.steps["planned"] = planned->picture;
  page.pictures.push_back({Picture::Kind::kMemoryMap, "arena", "planned", 0, {}});
  return Hint("The arena of one rank in a planned training step.") + "<div id=\"arena\"></div>\n";
}

std::string TimelineSection(const RunRecord& r, const std::optional<PlannedStep>& planned,
                            Page& page) {
  double planned_s = planned ? SecondsOf(planned->picture) : 0, measured_s = 0;
  if (r.timeline)
    for (const auto& [rank, step] : r.timeline->steps)
      measured_s = std::max(measured_s, SecondsOf(step));
  std::string html;
  if (planned_s > 0 && measured_s > 0) {
    const double ratio = measured_s / planned_s;
    if (ratio <= kOneScale && ratio >= 1 / kOneScale)
      planned_s = measured_s = std::max(planned_s, measured_s);
    else
      html += Hint(fmt::format(
          "Not on one scale: the measured step is {:.3g} times as long as the planned one.",
          ratio));
  }
  if (planned) {
    page.steps["planned"] = planned->picture;
    html += TimelinePlace(page, "planned", "Planned for " + planned->machine, planned_s);
  } else {
    html += Hint("Planned: not known, as memory by class.");
  }
  if (!r.timeline_problem.empty())
    return html + Warning("Measured: damaged: " + r.timeline_problem);
  if (!r.timeline)
    return html + Hint("Measured: nothing recorded. train --trace-step N times step N op by op.");
  if (planned && r.timeline->plan_hash != planned->hash)
    html += Warning("The measured step is another plan's than the one above.");
  return html + MeasuredTimelines(*r.timeline, measured_s, page);
}

std::string PredictedSection(const RunRecord& r) {
  const json &predicted = At(r.summary, {"predicted"}), &measured = At(r.summary, {"measured"});
  if (!predicted.is_object() || !measured.is_object())
    return Hint("Not known before the run has ended in good order.");
  std::string rows;
  const auto add = [&](const std::string& name, const json& p, const json& m) {
    if (!p.is_number() && !m.is_number()) return;
    const double a = NumberOf(p), b = NumberOf(m);
    const auto text = [&](double value) {
      if (!std::isfinite(value)) return std::string("not known");
      return std::floor(value) == value && std::abs(value) < 0x1p53 ? fmt::format("{:.0f}", value)
                                                                    : NumberText(value);
    };
    rows +=
        Row({Code(name), text(a), text(b),
             std::isfinite(a) && std::isfinite(b) && a != 0 ? fmt::format("{:.3f}", b / a) : ""},
            " nnn");
  };
  for (const char* name : {"step_ms", "tokens_per_s", "arena_bytes", "device_bytes", "wire_bytes"})
    add(name, At(predicted, {name}), At(measured, {name}));
  if (const json& counters = At(predicted, {"counters"}); counters.is_object())
    for (const auto& [name, value] : counters.items())
      add(name, value, At(measured, {"counters", name.c_str()}));
  return Hint("Of rank 0, for the steps of the last call; predicted for: " +
              TextOf(At(predicted, {"machine"}))) +
         Table({"", "predicted", "measured", "ratio"}, rows, " nnn");
}

}  // namespace millrace
