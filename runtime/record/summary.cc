#include "runtime/record/summary.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "runtime/base/json.h"
#include "runtime/base/quantile.h"
#include "runtime/data/file_system.h"
#include "runtime/record/metrics.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

std::string SummaryPath(const std::string& run_dir) { return run_dir + "/summary.json"; }

Json CountsJson(const NamedCounts& counts) {
  Json json = Json::object();
  for (const auto& [name, count] : counts) json[name] = count;
  return json;
}

Json FiguresJson(const RunFigures& f) {
  return {{"counters", CountsJson(f.counters)},
          {"wire_bytes", f.wire_bytes},
          {"arena_bytes", f.arena_bytes},
          {"device_bytes", f.device_bytes > 0 ? Json(f.device_bytes) : Json(nullptr)},
          {"step_ms", FiniteOrNull(f.step_ms)},
          {"tokens_per_s", FiniteOrNull(f.tokens_per_s)}};
}

Json SavesJson(const SaveTotals& t) {
  const auto spread = [](const std::vector<double>& values) {
    if (values.empty()) return Json(nullptr);
    return Json{{"median", Median(values)},
                {"max", *std::max_element(values.begin(), values.end())}};
  };
  return {{"published", t.published},
          {"failed", t.failed},
          {"stall_ms", spread(t.stall_ms)},
          {"save_ms", spread(t.save_ms)}};
}

}  // namespace

bool HasSummary(const std::string& run_dir) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(SummaryPath(run_dir), ignored)) return false;
  std::ifstream file(SummaryPath(run_dir));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return !TryParseJson(text).is_discarded();
}

void WriteSummary(const std::string& run_dir, const Summary& s) {
  const auto optional = [](const std::optional<double>& value) {
    return value ? FiniteOrNull(*value) : Json(nullptr);
  };
  const auto bytes = [](const std::optional<int64_t>& value) {
    return value ? Json(*value) : Json(nullptr);
  };
  Json predicted = FiguresJson(s.predicted);
  predicted["lower_bound_bytes"] = s.lower_bound_bytes;
  predicted["machine"] = s.machine;
  Json stages = Json::object();
  for (const PlanStage& stage : s.plan_stages) stages[stage.name] = stage.Hash();
  Json summary = {{"first_step", s.result.first_step},
                  {"last_step", s.result.last_step},
                  {"preempted", s.result.preempted},
                  {"first_loss", optional(s.result.first_loss)},
                  {"last_loss", optional(s.result.last_loss)},
                  {"last_loss_bits",
                   s.result.last_loss ? Json(Float32Bits(*s.result.last_loss)) : Json(nullptr)},
                  {"eval_before", optional(s.result.eval_before)},
                  {"eval_after", optional(s.result.eval_after)},
                  {"world", s.world},
                  {"peer_memory", s.peer_memory},
                  {"param_hash", s.param_hash},
                  {"optimizer_hash", s.optimizer_hash},
                  {"plan_hash", s.plan_hash},
                  {"plan_stages", stages},
                  {"tuning_hash", s.tuning_hash},
                  {"counters", CountsJson(s.counters)},
                  {"seconds", optional(s.seconds)},
                  {"resident_before_arena_bytes", bytes(s.resident_before_arena)},
                  {"peak_bytes", bytes(s.resident_peak)},
                  {"saves", s.saves ? SavesJson(*s.saves) : Json(nullptr)},
                  {"predicted", predicted},
                  {"measured", FiguresJson(s.measured)}};
  if (s.balanced_gate) summary["gate"] = "balanced";
  if (s.waiting_batches > 0) summary["waiting_batches"] = s.waiting_batches;
  if (!s.rebuilt_from.empty()) summary["rebuilt_from"] = s.rebuilt_from;
  if (!s.unreadable_lines.empty()) summary["unreadable_lines"] = s.unreadable_lines;
  WriteFileAtomically(FileSystem::Posix(), SummaryPath(run_dir),
                      DumpJson(summary, {.indent = 2, .replace = true}) + "\n");
}

}  // namespace millrace
