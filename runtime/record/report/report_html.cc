#include "runtime/record/report/report_html.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "runtime/base/quantile.h"
#include "runtime/picture/chart.h"
#include "runtime/picture/html.h"
#include "runtime/picture/page.h"
#include "runtime/picture/text.h"
#include "runtime/record/report/call_sections.h"
#include "runtime/record/report/expert_sections.h"
#include "runtime/record/report/planned_sections.h"

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
    tiles +=
        Tile(known(last.loss, NumberText(last.loss)), fmt::format("loss of step {}", last.step));
    const auto eval = std::find_if(r.rows.rbegin(), r.rows.rend(),
                                   [](const auto& row) { return row.eval_loss.has_value(); });
    if (eval != r.rows.rend())
      tiles += Tile(known(*eval->eval_loss, NumberText(*eval->eval_loss)),
                    fmt::format("held-out loss after step {}", eval->step));
    if (std::isfinite(last.tokens)) tiles += Tile(CountText(last.tokens), "tokens seen, all ranks");
    if (const double ms = MedianOf(r.rows, &StepRow::step_ms); std::isfinite(ms))
      tiles += Tile(Milliseconds(ms), "median step");
    if (const double rate = MedianOf(r.rows, &StepRow::tokens_per_s); std::isfinite(rate))
      tiles += Tile(CountText(rate), "tokens/s, median, all ranks");
    if (const double mfu = MedianOf(r.rows, &StepRow::mfu); mfu > 0)
      tiles += Tile(fmt::format("{:.1f}%", 100 * mfu), "MFU, median");
  }
  if (!r.rows.empty() && r.rows.back().balanced_gate)
    tiles += Tile("balanced", "gate: a fixed pattern chose the experts");
  tiles += Tile(std::to_string(skipped), "updates skipped");
  if (!r.rows.empty() && std::isfinite(r.rows.back().loss_scale))
    tiles += Tile(fmt::format("{}", r.rows.back().loss_scale),
                  fmt::format("loss scale; overflows so far: {}", r.rows.back().scale_downs));
  const auto again =
      std::count_if(r.rows.begin(), r.rows.end(), [](const StepRow& row) { return row.again; });
  const int64_t waiting = r.rows.empty() ? 0 : r.rows.back().waiting_batches;
  if (again + waiting > 0)
    tiles += Tile(fmt::format("{}, {} wait", again, waiting), "batches run again with more room");
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
      ChartHtml({"loss", "Loss", NumberText, {series("loss", &StepRow::loss), held_out}, marks});
  html += ChartHtml({"grad_norm",
                     "Gradient norm",
                     NumberText,
                     {series("grad_norm", &StepRow::grad_norm)},
                     marks});
  html += ChartHtml({"lr", "Learning rate", NumberText, {series("lr", &StepRow::lr)}, marks});
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
  const bool routed = std::any_of(r.rows.begin(), r.rows.end(),
                                  [](const StepRow& row) { return !std::isnan(row.max_load); });
  if (!routed) return html;
  html += ChartHtml({"max_load",
                     "Largest load of an expert over the mean, of all blocks",
                     NumberText,
                     {series("load", &StepRow::max_load)},
                     marks});
  html += ChartHtml({"router_entropy",
                     "Entropy of the mean probabilities over experts, least of all blocks",
                     NumberText,
                     {series("entropy", &StepRow::router_entropy)},
                     marks});
  // Always 0 where buffers have room for all rows.
  if (std::any_of(r.rows.begin(), r.rows.end(),
                  [](const StepRow& row) { return row.dropped_pairs > 0; }))
    html += ChartHtml({"dropped_pairs",
                       "Pairs of token and expert without room, of steps that were then skipped",
                       NumberText,
                       {series("pairs", &StepRow::dropped_pairs)},
                       marks});
  return html;
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

// Nothing about a run that blends no sources.
std::string SourcesSection(const RunRecord& r) {
  if (r.sources.empty()) return "";
  const auto known = [](double value, const std::string& text) {
    return std::isfinite(value) ? text : std::string("not known");
  };
  std::string rows;
  for (const SourceRow& source : r.sources)
    rows += Row({HtmlText(source.name), known(source.samples, CountText(source.samples)),
                 known(source.epochs, NumberText(source.epochs)),
                 known(source.eval_loss, NumberText(source.eval_loss))},
                " nnn");
  return Section("sources", "Sources of the data",
                 Table({"", "sequences drawn", "epochs", "held-out loss"}, rows, " nnn"));
}

// Nothing about a run without scores.
std::string ScoresSection(const RunRecord& r) {
  if (r.scores.empty()) return "";
  std::string rows;
  for (const ScoreValue& score : r.scores)
    rows += Row({HtmlText(score.task), HtmlText(score.metric),
                 std::isfinite(score.value) ? NumberText(score.value) : "not finite",
                 std::to_string(score.step)},
                "  nn");
  return Section("scores", "Scores",
                 Table({"task", "metric", "newest", "after step"}, rows, "  nn"));
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
  const std::string name = path.filename().string();
  Page page;
  page.title = "Millrace run " + name;
  page.header =
      fmt::format("<div>\n<h1>Millrace run {}</h1>\n<p>{}</p>\n<p id=\"state\">{}</p>\n{}</div>\n",
                  HtmlText(name), Code(r.dir), HtmlText(State(r)), notes);
  const std::string map = MemoryMapSection(planned, page),
                    timeline = TimelineSection(r, planned, page);
  page.main = Tiles(r) + Charts(r) + ExpertsSection(r) + SourcesSection(r) + ScoresSection(r) +
              Section("memory", "Memory", MemorySection(r, planned)) +
              Section("skipped", "Skipped steps", SkippedSection(r)) +
              Section("memory-map", "Memory map", map, true) +
              Section("timeline", "Timeline", timeline, true) +
              Section("calls", "Calls and checkpoints", CallsSection(r)) +
              Section("predicted", "Predicted beside measured", PredictedSection(r)) +
              Section("configuration", "Configuration", ConfigurationSection(r), true) +
              Section("hashes", "Plan stages and hashes", HashesSection(r)) +
              Section("environment", "Environment", EnvironmentSection(r));
  return PageHtml(page);
}

}  // namespace millrace
