#include "runtime/record/run_folder.h"

#include <fmt/core.h>

#include <bit>
#include <charconv>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/data/input_file.h"
#include "runtime/data/strict_json.h"

namespace millrace {
namespace {

constexpr int64_t kLargestMetrics = int64_t{4} << 30;
constexpr int64_t kLargestSummary = int64_t{16} << 20;
constexpr int kLineDepth = 8;

// "0x3f9d70a4" of Float32Bits.
float FloatOfBits(const nlohmann::json& line, const std::string& key, const JsonOrigin& origin) {
  const std::string text = JsonString(line, key, origin);
  uint32_t bits = 0;
  const char* const end = text.data() + text.size();
  const bool sized = text.size() == 10 && text.starts_with("0x");
  const auto parsed = std::from_chars(text.data() + (sized ? 2 : 0), end, bits, 16);
  MR_REQUIRE(origin.code, sized && parsed.ec == std::errc() && parsed.ptr == end,
             "{}: \"{}\" = {}: must be 0x and eight hex digits", origin.name, key, text);
  return std::bit_cast<float>(bits);
}

float NumberOrNan(const nlohmann::json& line, const std::string& key, const JsonOrigin& origin) {
  const nlohmann::json& value = JsonField(line, key, origin);
  if (value.is_null()) return std::numeric_limits<float>::quiet_NaN();
  MR_REQUIRE(origin.code, value.is_number(), "{}: \"{}\" must be a number or null, got {}",
             origin.name, key, value.type_name());
  return static_cast<float>(value.get<double>());
}

MetricsLine StepFrom(const nlohmann::json& line, const JsonOrigin& origin) {
  MetricsLine step;
  step.loss = FloatOfBits(line, "loss_bits", origin);
  step.grad_norm = NumberOrNan(line, "grad_norm", origin);
  if (line.contains("eval_loss_bits")) step.eval_loss = FloatOfBits(line, "eval_loss_bits", origin);
  if (line.contains("offender")) step.offender = JsonString(line, "offender", origin);
  if (!line.contains("rolled_back")) return step;
  for (const nlohmann::json& made : JsonField(line, "rolled_back", origin))
    step.rolled_back.emplace_back(JsonCount(made, "from", origin), JsonString(made, "why", origin));
  return step;
}

RecordedSummary SummaryFrom(const std::string& text, const std::string& path) {
  const JsonOrigin origin{path, ErrorCode::kData};
  const nlohmann::json object = ParseStrictJson(text, kLineDepth, origin);
  RecordedSummary summary;
  summary.last_step = JsonCount(object, "last_step", origin);
  for (const std::string_view known : kFinalHashNames)
    if (const std::string name(known); object.contains(name))
      summary.hashes[name] = JsonString(object, name, origin);
  if (!object.contains("plan_stages")) return summary;
  const nlohmann::json& stages = JsonField(object, "plan_stages", origin);
  for (const auto& [name, hash] : stages.items())
    summary.plan_stages[name] = JsonString(stages, name, origin);
  return summary;
}

}  // namespace

RecordedMetrics ParseMetrics(std::string_view text, const std::string& path) {
  RecordedMetrics metrics;
  for (int number = 1; !text.empty(); ++number) {
    const size_t newline = text.find('\n');
    if (newline == text.npos) {
      metrics.torn = true;
      break;
    }
    const JsonOrigin origin{fmt::format("{}:{}", path, number), ErrorCode::kData};
    const nlohmann::json line = ParseStrictJson(text.substr(0, newline), kLineDepth, origin);
    const bool added =
        metrics.steps.insert_or_assign(JsonCount(line, "step", origin), StepFrom(line, origin))
            .second;
    if (!added) ++metrics.repeated;
    text.remove_prefix(newline + 1);
  }
  return metrics;
}

RecordedRun ReadRunFolder(const std::string& run_dir) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const auto has = [&](const std::string& path) { return fs::exists(path, ignored); };
  const std::string metrics = run_dir + "/metrics.jsonl", summary = run_dir + "/summary.json";
  MR_REQUIRE(ErrorCode::kData, has(run_dir), "{} does not exist", run_dir);
  MR_REQUIRE(ErrorCode::kData, fs::is_directory(run_dir, ignored),
             "{} is not a folder; a run is named by its run.dir", run_dir);
  RecordedRun run;
  try {
    if (std::optional<RunHistory> history = ReadRunHistory(run_dir))
      run.history = std::move(*history);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kData) throw;
    run.history_problem = error.what();
  }
  MR_REQUIRE(ErrorCode::kData, has(metrics) || !run.history.empty(),
             "{} is not a run's folder: it has neither metrics.jsonl nor config.json", run_dir);
  if (has(metrics))
    run.metrics = ParseMetrics(ReadWholeFile(metrics, kLargestMetrics, ErrorCode::kData), metrics);
  if (has(summary))
    run.summary = SummaryFrom(ReadWholeFile(summary, kLargestSummary, ErrorCode::kData), summary);
  return run;
}

}  // namespace millrace
