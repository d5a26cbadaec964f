#include "runtime/record/report/run_record.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/input_file.h"
#include "runtime/data/strict_json.h"
#include "runtime/picture/text.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr int64_t kLargestMetrics = int64_t{4} << 30;
constexpr int64_t kLargestSummary = int64_t{16} << 20;
constexpr int kSummaryDepth = 8;

double NumberOf(const json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : StepRow::kUnknown;
}

// Of an object of numbers, the first by `before`.
double FirstOf(const json& line, const char* key, bool (*before)(double, double)) {
  double first = StepRow::kUnknown;
  const auto found = line.find(key);
  if (found == line.end() || !found->is_object()) return first;
  for (const json& value : *found)
    if (value.is_number() && (std::isnan(first) || before(value.get<double>(), first)))
      first = value.get<double>();
  return first;
}

// Blocks whose loads are counts; {} where the line has none.
std::vector<std::pair<std::string, std::vector<double>>> LoadsOf(const json& line) {
  std::vector<std::pair<std::string, std::vector<double>>> loads;
  const auto found = line.find("loads");
  if (found == line.end() || !found->is_object()) return loads;
  for (const auto& [block, counts] : found->items())
    if (counts.is_array() && !counts.empty() &&
        std::ranges::all_of(counts, [](const json& n) { return n.is_number_unsigned(); }))
      loads.emplace_back(block, counts.get<std::vector<double>>());
  return loads;
}

StepRow RowOf(const json& line, int64_t step) {
  StepRow row;
  row.step = step;
  row.loss = NumberOf(line, "loss");
  row.grad_norm = NumberOf(line, "grad_norm");
  row.lr = NumberOf(line, "lr");
  row.tokens = NumberOf(line, "tokens");
  row.step_ms = NumberOf(line, "step_ms");
  row.tokens_per_s = NumberOf(line, "tokens_per_s");
  row.mfu = NumberOf(line, "mfu");
  row.peak_bytes = NumberOf(line, "peak_bytes");
  row.save_stall_ms = NumberOf(line, "save_stall_ms");
  row.max_load = FirstOf(line, "max_load", [](double a, double b) { return a > b; });
  row.router_entropy = FirstOf(line, "router_entropy", [](double a, double b) { return a < b; });
  row.loads = LoadsOf(line);
  row.dropped_pairs = NumberOf(line, "dropped_pairs");
  row.loss_scale = NumberOf(line, "loss_scale");
  row.scale_downs = NumberOf(line, "scale_downs");
  row.balanced_gate = line.contains("gate");
  row.again = line.contains("again");
  if (const auto batches = line.find("waiting_batches");
      batches != line.end() && batches->is_number_integer())
    row.waiting_batches = batches->get<int64_t>();
  row.save_failed = line.contains("save_error");
  if (line.contains("eval_loss")) row.eval_loss = NumberOf(line, "eval_loss");
  if (const auto offender = line.find("offender"); offender != line.end() && offender->is_string())
    row.offender = offender->get<std::string>();
  if (const auto made = line.find("rolled_back"); made != line.end() && made->is_array())
    for (const json& one : *made)
      if (one.is_object() && one.contains("from") && one["from"].is_number_integer() &&
          one.contains("why") && one["why"].is_string())
        row.rolled_back.emplace_back(one["from"].get<int64_t>(), one["why"].get<std::string>());
  return row;
}

// What the last line that has `key`, an object of numbers, says of each source.
void TakeFigures(const json& line, const char* key, double SourceRow::*figure,
                 std::vector<SourceRow>& sources) {
  const auto of = line.find(key);
  if (of == line.end() || !of->is_object()) return;
  for (const auto& [name, value] : of->items()) {
    auto source = std::find_if(sources.begin(), sources.end(),
                               [&name = name](const SourceRow& row) { return row.name == name; });
    if (source == sources.end()) source = sources.insert(source, SourceRow{.name = name});
    (*source).*figure = millrace::NumberOf(value);
  }
}

void TakeScores(const json& line, int64_t step, std::vector<ScoreValue>& scores) {
  const auto tasks = line.find("scores");
  if (tasks == line.end() || !tasks->is_object()) return;
  scores.clear();
  for (const auto& [task, metrics] : tasks->items()) {
    if (!metrics.is_object()) continue;
    for (const auto& [metric, value] : metrics.items())
      if (!value.is_string()) scores.push_back({task, metric, millrace::NumberOf(value), step});
  }
}

// Whole lines only. ReadRunFolder has judged the file; what a run that goes on has
// changed since is taken as it is.
std::vector<StepRow> RowsOf(std::string_view text, RunRecord& record) {
  std::map<int64_t, StepRow> rows;
  for (size_t newline; (newline = text.find('\n')) != text.npos; text.remove_prefix(newline + 1)) {
    const json line = TryParseJson(text.substr(0, newline));
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) continue;
    const auto step = line["step"].get<int64_t>();
    rows.insert_or_assign(step, RowOf(line, step));
    TakeFigures(line, "source_samples", &SourceRow::samples, record.sources);
    TakeFigures(line, "source_epochs", &SourceRow::epochs, record.sources);
    TakeFigures(line, "source_eval_loss", &SourceRow::eval_loss, record.sources);
    TakeScores(line, step, record.scores);
  }
  std::vector<StepRow> all;
  all.reserve(rows.size());
  for (auto& [step, row] : rows) all.push_back(std::move(row));
  return all;
}

}  // namespace

RunRecord ReadRunRecord(const std::string& run_dir) {
  RecordedRun run = ReadRunFolder(run_dir);
  RunRecord record;
  record.dir = run_dir;
  record.torn = run.metrics.torn;
  record.history = std::move(run.history);
  record.history_problem = std::move(run.history_problem);
  std::error_code ignored;
  if (const std::string path = run_dir + "/metrics.jsonl"; std::filesystem::exists(path, ignored))
    record.rows = RowsOf(ReadWholeFile(path, kLargestMetrics, ErrorCode::kData), record);
  // A run that was resumed in between has removed it.
  if (const std::string path = run_dir + "/summary.json";
      run.summary && std::filesystem::exists(path, ignored))
    record.summary = ParseStrictJson(ReadWholeFile(path, kLargestSummary, ErrorCode::kData),
                                     kSummaryDepth, {path, ErrorCode::kData});
  try {
    record.checkpoints = ListCheckpoints(run_dir + "/checkpoints");
  } catch (const Error& error) {  // a run that goes on removes old ones while they are looked at
    record.checkpoints_problem = error.what();
  }
  record.failures = ReadRestarts(run_dir);
  if (const std::string path = run_dir + "/" + kTimelineName;
      std::filesystem::exists(path, ignored)) {
    try {
      record.timeline = ReadTimeline(path);
    } catch (const Error& error) {
      record.timeline_problem = error.what();
    }
  }
  return record;
}

const json& At(const json& object, std::initializer_list<const char*> path) {
  static const json kNone;
  const json* at = &object;
  for (const char* key : path) {
    if (!at->is_object() || !at->contains(key)) return kNone;
    at = &(*at)[key];
  }
  return *at;
}

std::string TextOf(const json& value) {
  return value.is_string() ? value.get<std::string>() : DumpJson(value, {.replace = true});
}

double NumberOf(const json& value) {
  return value.is_number() ? value.get<double>() : StepRow::kUnknown;
}

std::string NumberText(double value) { return fmt::format("{:.6g}", value); }
std::string KnownBytes(double value) {
  return std::isfinite(value) && std::abs(value) < 0x1p62 ? BytesText(std::llround(value))
                                                          : "not known";
}
std::string Milliseconds(double value) { return fmt::format("{:.4g} ms", value); }

}  // namespace millrace
