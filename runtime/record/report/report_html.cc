#include "runtime/record/report/report_html.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "runtime/base/quantile.h"
#include "runtime/plan/report/plan_text.h"
#include "runtime/record/report/call_sections.h"
#include "runtime/record/report/chart.h"
#include "runtime/record/report/html_parts.h"
#include "runtime/record/report/memory_map.h"
#include "runtime/record/report/report_style.h"
#include "runtime/record/report/timeline_picture.h"

namespace millrace {
namespace {

using nlohmann::json;

double MedianOf(const std::vector<StepRow>& rows, double StepRow::*column) {
  std::vector<double> values;
  for (const StepRow& row : rows)
    if (std::isfinite(row.*column)) values.push_back(row.*column);
  return values.empty() ? StepRow::kUnknown : Median(std::move(values));
}

std::string State(const RunRecord& r) {
  std::string text;
  if (r.summary.is_null())
    text = "No summary.json: the run goes on, or did not end in good order.";
  else if (At(r.summary, {"preempted"}) == true)
    text = fmt::format("Stopped on request after step {}, saved.",
                       TextOf(At(r.summary, {"last_step"})));
  else
    text = fmt::format("Ended in good order after step {}.", TextOf(At(r.summary, {"last_step"})));
  if (!r.history.empty())
    if (const auto steps = r.history.back().keys.find("train.steps");
        steps != r.history.back().keys.end())
      text += fmt::format(" train.steps is {}.", steps->second.value);
  return text;
}

std::string Tile(const std::string& value, const std::string& what) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", HtmlText(value),
                     HtmlText(what));
}

std::string Tiles(const RunRecord& r) {
  const auto known = [](double value, const std::string& text) {
    return std::isfinite(value) ? text : "not finite";
  };
  std::string tiles = Tile(std::to_string(r.rows.size()), "steps recorded");
  const auto skipped = std::count_if(r.rows.begin(), r.rows.end(),
                                     [](const auto& row) { return !row.offender.empty(); });
  if (!r.rows.empty()) {
    const StepRow& last = r.rows.back();
    tiles += Tile(known(last.loss, Short(last.loss)), fmt::format("loss of step {}", last.step));
    const auto eval = std::find_if(r.rows.rbegin(), r.rows.rend(),
                                   [](const auto& row) { return row.eval_loss.has_value(); });
    if (eval != r.rows.rend())
      tiles += Tile(known(*eval->eval_loss, Short(*eval->eval_loss)),
                    fmt::format("held-out loss after step {}", eval->step));
    if (std::isfinite(last.tokens)) tiles += Tile(CountText(last.tokens), "tokens seen, all ranks");
    if (const double ms = MedianOf(r.rows, &StepRow::step_ms); std::isfinite(ms))
      tiles += Tile(Milliseconds(ms), "median step");
    if (const double rate = MedianOf(r.rows, &StepRow::tokens_per_s); std::isfinite(rate))
      tiles += Tile(CountText(rate), "tokens/s, median, all ranks");
    if (const double mfu = MedianOf(r.rows, &StepRow::mfu); mfu > 0)
      tiles += Tile(fmt::format("{:.1f}%", 100 * mfu), "MFU, median");
  }
  tiles += Tile(std::to_string(skipped), "updates skipped");
  size_t rolled_back = 0;
  for (const StepRow& row : r.rows) rolled_back += row.rolled_back.size();
  if (rolled_back > 0) tiles += Tile(std::to_string(rolled_back), "roll-backs");
  return "<div class=\"tiles wide\">\n" + tiles + "</div>\n";
}

// Steps whose update was skipped, where the run was rolled back to, and where calls with another
// configuration began.
std::vector<ChartMark> Marks(const RunRecord& r) {
  std::vector<ChartMark> marks;
  for (size_t i = 1; i < r.history.size(); ++i)
    marks.push_back(
        {static_cast<double>(r.history[i].step) + 0.5, "call",
         fmt::format("resumed after step {} with another configuration", r.history[i].step)});
  size_t bad = 0;
  for (const StepRow& row : r.rows)
    if (!row.offender.empty() && ++bad <= kMostPoints)
      marks.push_back({static_cast<double>(row.step), "bad",
                       fmt::format("step {}: update skipped: {}", row.step, row.offender)});
  size_t undone = 0;
  for (const StepRow& row : r.rows)
    for (const auto& [from, why] : row.rolled_back)
      if (++undone <= kMostPoints)
        marks.push_back(
            {static_cast<double>(row.step) - 0.5, "bad",
             fmt::format("rolled back from step {} to {}: {}", from, row.step - 1, why)});
  return marks;
}

std::string Charts(const RunRecord& r) {
  const std::vector<ChartMark> marks = Marks(r);
  const auto series = [&](const char* name, double StepRow::*column) {
    ChartSeries all{name, "main", {}};
    for (const StepRow& row : r.rows) all.points.push_back({row.step, row.*column});
    return all;
  };
  ChartSeries held_out{"held-out loss", "other", {}};
  for (const StepRow& row : r.rows)
    if (row.eval_loss) held_out.points.push_back({row.step, *row.eval_loss});
  std::string html =
      ChartHtml({"loss", "Loss", Short, {series("loss", &StepRow::loss), held_out}, marks});
  html += ChartHtml(
      {"grad_norm", "Gradient norm", Short, {series("grad_norm", &StepRow::grad_norm)}, marks});
  html += ChartHtml({"lr", "Learning rate", Short, {series("lr", &StepRow::lr)}, marks});
  html += ChartHtml({"tokens_per_s",
                     "Tokens per second, all ranks",
                     CountText,
                     {series("tokens/s", &StepRow::tokens_per_s)},
                     marks});
  html += ChartHtml(
      {"step_ms", "Time of a step", Milliseconds, {series("step", &StepRow::step_ms)}, marks});
  html += ChartHtml({"peak_bytes",
                     "Most memory in use so far, rank 0",
                     KnownBytes,
                     {series("peak", &StepRow::peak_bytes)},
                     marks});
  return html;
}

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
  const int64_t most =
      std::max<int64_t>(1, *std::max_element(planned->by_class.begin(), planned->by_class.end()));
  for (int c = 0; c < kBufferClasses; ++c) {
    const auto i = static_cast<size_t>(c);
    if (planned->by_class[i] == 0) continue;
    classes += Row({HtmlText(Name(static_cast<BufferClass>(c))), BytesText(planned->by_class[i]),
                    BytesText(planned->at_peak[i]),
                    fmt::format("<i style=\"width:{:.1f}%\"></i>",
                                100.0 * static_cast<double>(planned->by_class[i]) /
                                    static_cast<double>(most))},
                   " nn");
    classes.replace(classes.rfind("<td><i"), 4, "<td class=\"bar\">");
  }
  return html + "<h3>Planned for a training step</h3>\n" +
         Table({"class", "most", "at the peak of all", ""}, classes, " nn") +
         Hint(fmt::format("Arena of the training plan: {}; lower bound {}.",
                          BytesText(planned->arena), BytesText(planned->lower_bound)));
}

// One scale for both where it shows both.
constexpr double kOneScale = 4;
constexpr int64_t kRanksShown = 4;

std::string MeasuredTitle(const RecordedTimeline& line) {
  return fmt::format("Measured{} on {}, {}",
                     line.step ? fmt::format(" in step {}", *line.step) : "", line.device,
                     line.how);
}

std::string MeasuredTimelines(const RecordedTimeline& line, double until) {
  std::string html;
  for (int64_t rank = 0; rank < std::min(line.ranks, kRanksShown); ++rank) {
    const auto ops = line.ops.find(rank);
    html += TimelineHtml({fmt::format("timeline-rank-{}", rank),
                          fmt::format("{}, rank {}", MeasuredTitle(line), rank),
                          ops == line.ops.end() ? std::vector<TimelineOp>() : ops->second, until});
  }
  if (line.ranks > kRanksShown)
    html += Hint(fmt::format("{} more ranks are in timeline.json.", line.ranks - kRanksShown));
  return html;
}

std::string TimelineSection(const RunRecord& r, const std::optional<PlannedStep>& planned) {
  double planned_ms = planned ? EndOf(planned->ops) : 0, measured_ms = 0;
  if (r.timeline)
    for (const auto& [rank, ops] : r.timeline->ops) measured_ms = std::max(measured_ms, EndOf(ops));
  std::string html, scale;
  if (planned_ms > 0 && measured_ms > 0) {
    const double ratio = measured_ms / planned_ms;
    if (ratio <= kOneScale && ratio >= 1 / kOneScale)
      planned_ms = measured_ms = std::max(planned_ms, measured_ms);
    else
      scale = Hint(fmt::format(
          "Not on one scale: the measured step is {:.3g} times as long as the planned one.",
          ratio));
  }
  if (planned || r.timeline) html += TimelineLegend() + scale;
  if (planned)
    html += TimelineHtml(
        {"timeline-planned", "Planned for " + planned->machine, planned->ops, planned_ms});
  else
    html += Hint("Planned: not known, as memory by class.");
  if (!r.timeline_problem.empty())
    return html + Warning("Measured: damaged: " + r.timeline_problem);
  if (!r.timeline)
    return html + Hint("Measured: nothing recorded. train --trace-step N times step N op by op.");
  if (planned && r.timeline->plan_hash != planned->hash)
    html += Warning("The measured step is another plan's than the one above.");
  return html + MeasuredTimelines(*r.timeline, measured_ms);
}

std::string MemoryMapSection(const std::optional<PlannedStep>& planned) {
  const std::string map = planned ? MemoryMapHtml(planned->map) : "";
  return map.empty() ? Hint("Not known, as memory by class.")
                     : Hint(
                           "The arena of one rank in a planned training step: bytes upwards, ops "
                           "to the right.") +
                           map;
}

std::string RollBacksTable(const RunRecord& r) {
  constexpr size_t kShown = 1000;
  std::string rows;
  size_t count = 0;
  for (const StepRow& row : r.rows)
    for (const auto& [from, why] : row.rolled_back)
      if (++count <= kShown)
        rows += Row({std::to_string(from), std::to_string(row.step - 1), HtmlText(why)}, "nn");
  if (count == 0) return "";
  std::string html = "<h3>Rolled back</h3>\n" + Table({"from step", "to step", "why"}, rows, "nn");
  if (count > kShown) html += Hint(fmt::format("The first {} of {}.", kShown, count));
  return html;
}

std::string SkippedSection(const RunRecord& r) {
  constexpr size_t kShown = 1000;
  std::string rows;
  size_t count = 0;
  for (const StepRow& row : r.rows)
    if (!row.offender.empty() && ++count <= kShown)
      rows += Row({std::to_string(row.step), HtmlText(row.offender)}, "n");
  std::string html = count == 0 ? Hint("None: every update was applied.")
                                : Table({"step", "why its update was skipped"}, rows, "n");
  if (count > kShown) html += Hint(fmt::format("The first {} of {}.", kShown, count));
  return html + RollBacksTable(r);
}

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
                                                                    : Short(value);
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

}  // namespace

std::string ReportHtml(const RunRecord& r, const std::optional<PlannedStep>& planned) {
  std::filesystem::path path(r.dir);
  if (!path.has_filename()) path = path.parent_path();
  std::string notes;
  if (r.torn)
    notes +=
        Warning("The last line of metrics.jsonl is cut off: the run was killed, or is writing it.");
  if (!r.history_problem.empty()) notes += Warning("Not a run's config.json: " + r.history_problem);
  if (r.rows.empty()) notes += Warning("No step is recorded yet.");
  const std::string name = HtmlText(path.filename().string());
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Millrace run "
      "{}</title>\n<style>{}</style>\n</head>\n<body>\n<header>\n<h1>Millrace run {}</h1>\n"
      "<p>{}</p>\n<p id=\"state\">{}</p>\n{}</header>\n<main>\n",
      name, kReportStyle, name, Code(r.dir), HtmlText(State(r)), notes);
  html += Tiles(r) + Charts(r) + Section("memory", "Memory", MemorySection(r, planned)) +
          Section("skipped", "Skipped steps", SkippedSection(r)) +
          Section("memory-map", "Memory map", MemoryMapSection(planned), true) +
          Section("timeline", "Timeline", TimelineSection(r, planned), true) +
          Section("calls", "Calls and checkpoints", CallsSection(r)) +
          Section("predicted", "Predicted beside measured", PredictedSection(r)) +
          Section("configuration", "Configuration", ConfigurationSection(r), true) +
          Section("hashes", "Plan stages and hashes", HashesSection(r)) +
          Section("environment", "Environment", EnvironmentSection(r));
  return html + "</main>\n</body>\n</html>\n";
}

}  // namespace millrace
