#include "runtime/api/metrics.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/data/file_system.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no NaN: a non-finite number becomes null, and loss_bits keeps what it was.
Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::string MetricsPath(const std::string& run_dir) { return run_dir + "/metrics.jsonl"; }

// The lines of steps up to `resume_step`, in a file replaced at once.
std::string Trimmed(const std::string& run_dir, int64_t resume_step) {
  MakeFolder(FileSystem::Posix(), run_dir);
  const std::string path = MetricsPath(run_dir);
  std::ifstream in(path);
  if (!in) return path;
  std::string kept, line;
  bool dropped = false;
  while (std::getline(in, line)) {
    const Json entry = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool keep = entry.is_object() && entry.contains("step") && entry["step"].is_number_integer() && entry["step"].get<int64_t>() <= resume_step;
    if (keep) kept += line + "\n";
    dropped |= !keep;
  }
  if (dropped) WriteFileAtomically(FileSystem::Posix(), path, kept);
  return path;
}

}  // namespace

std::string Float32Bits(double value) { return fmt::format("0x{:08x}", std::bit_cast<uint32_t>(static_cast<float>(value))); }

int64_t PeakResidentBytes() {
  std::ifstream in("/proc/self/status");
  std::string line;
  while (std::getline(in, line))
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

MetricsFile::MetricsFile(const std::string& run_dir, int64_t resume_step) : lines_(Trimmed(run_dir, resume_step)) {}

void MetricsFile::Append(const StepReport& r) {
  Json line = {{"step", r.step},
               {"loss", Number(r.loss)},
               {"loss_bits", Float32Bits(r.loss)},
               {"grad_norm", Number(r.grad_norm)},
               {"lr", r.lr},
               {"tokens", r.tokens},
               {"step_ms", r.step_ms},
               {"tokens_per_s", r.tokens_per_s},
               {"mfu", r.mfu},
               {"peak_bytes", r.peak_bytes},
               {"skipped", r.skipped}};
  if (!r.finite) line["offender"] = r.offender;
  lines_.Append(line.dump());
}

void MetricsFile::AppendEval(int64_t step, double loss) {
  lines_.Append(Json{{"step", step}, {"eval_loss", Number(loss)}, {"eval_loss_bits", Float32Bits(loss)}}.dump());
}

void MetricsFile::Sync() { lines_.Sync(); }

void WriteSummary(const std::string& run_dir, const Summary& s) {
  const StepCounters& c = s.counters;
  Json measured = {{"bytes_concatenated", c.kernels.concatenated_bytes},
                   {"bytes_cast", c.kernels.cast_bytes},
                   {"bytes_copied", c.kernels.copied_bytes},
                   {"bytes_gathered", c.comm.gathered_bytes},
                   {"bytes_reduced", c.comm.reduced_bytes},
                   {"bytes_all_reduced", c.comm.all_reduced_bytes},
                   {"gathers", c.comm.all_gathers},
                   {"reduces", c.comm.reduce_scatters},
                   {"all_reduces", c.comm.all_reduces},
                   {"graph_launches", c.graph_launches}};
  Json summary = {{"first_step", s.result.first_step},
                  {"last_step", s.result.last_step},
                  {"preempted", s.result.preempted},
                  {"first_loss", Number(s.result.first_loss)},
                  {"last_loss", Number(s.result.last_loss)},
                  {"last_loss_bits", Float32Bits(s.result.last_loss)},
                  {"eval_before", s.result.eval_before ? Number(*s.result.eval_before) : Json(nullptr)},
                  {"eval_after", s.result.eval_after ? Number(*s.result.eval_after) : Json(nullptr)},
                  {"world", s.world},
                  {"param_hash", s.param_hash},
                  {"optimizer_hash", s.optimizer_hash},
                  {"plan_hash", s.plan_hash},
                  {"counters", measured},
                  {"seconds", s.seconds},
                  {"median_step_ms", s.median_step_ms},
                  {"tokens_per_s", s.tokens_per_s},
                  {"arena_bytes", s.arena_bytes},
                  {"resident_before_arena_bytes", s.resident_before_arena},
                  {"peak_bytes", s.resident_peak},
                  {"predicted", s.predicted}};
  WriteFileAtomically(FileSystem::Posix(), run_dir + "/summary.json", summary.dump(2) + "\n");
}

}  // namespace millrace
