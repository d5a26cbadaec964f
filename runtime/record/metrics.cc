#include "runtime/record/metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/file_system.h"
#include "runtime/record/run_history.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

std::string MetricsPath(const std::string& run_dir) { return run_dir + "/metrics.jsonl"; }

// Moves what an earlier run left to the first free <name>.old-<n>.<extension>.
void SetAside(const std::string& run_dir) {
  using File = std::pair<const char*, const char*>;
  std::vector<File> files = {{"metrics", ".jsonl"},  {"summary", ".json"},
                             {"timeline", ".json"},  {"tensorboard", ""},
                             {"restarts", ".jsonl"}, {"roll_backs", ".jsonl"}};
  if (HasRunHistory(run_dir)) files.emplace_back("config", ".json");
  const auto exists = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
  };
  const auto old = [&](int n, const File& file) {
    return fmt::format("{}/{}.old-{}{}", run_dir, file.first, n, file.second);
  };
  int n = 1;
  while (std::any_of(files.begin(), files.end(),
                     [&](const File& file) { return exists(old(n, file)); }))
    ++n;
  for (const File& file : files)
    if (const std::string path = fmt::format("{}/{}{}", run_dir, file.first, file.second);
        exists(path))
      Rename(FileSystem::Posix(), path, old(n, file));
}

std::optional<int64_t> StepOf(const std::string& line) {
  const Json entry = TryParseOrderedJson(line);
  if (!entry.is_object() || !entry.contains("step") || !entry["step"].is_number_integer())
    return std::nullopt;
  return entry["step"].get<int64_t>();
}

// The path of a metrics file that holds the lines of steps up to `resume_step`; counts those of
// later ones in `dropped`, and in `missing` the steps that it has no line of, if there was a file.
std::string Prepared(const std::string& run_dir, int64_t resume_step, OldMetrics old,
                     int64_t* dropped, int64_t* missing) {
  MakeFolder(FileSystem::Posix(), run_dir);
  if (old == OldMetrics::kSetAside) SetAside(run_dir);
  // While a run goes on, and when it is killed, no summary of an earlier call passes for its own.
  std::error_code ignored;
  std::filesystem::remove(run_dir + "/summary.json", ignored);
  const std::string path = MetricsPath(run_dir);
  // A pipe would wait for a writer; the appender refuses what is no file.
  if (!std::filesystem::is_regular_file(path, ignored)) return path;
  std::ifstream in(path);
  if (!in) return path;
  std::string kept, line;
  std::set<int64_t> steps;
  bool damaged = false;
  while (std::getline(in, line)) {
    const std::optional<int64_t> step = StepOf(line);
    if (step && *step <= resume_step) {
      kept += line + "\n";
      steps.insert(*step);
    } else if (step) {
      ++*dropped;
    } else {
      damaged = true;
    }
  }
  *missing = resume_step - static_cast<int64_t>(steps.size());
  if (*dropped > 0 || damaged) WriteFileAtomically(FileSystem::Posix(), path, kept);
  return path;
}

// What the model was measured on, after this step.
void AddScores(const StepReport& r, Json& line) {
  for (const SourceLoss& source : r.eval_sources)
    line["source_eval_loss"][source.name] = FiniteOrNull(source.loss);
  for (const EvalScores& scores : r.scores) {
    Json& of = line["scores"][scores.task];
    of = {{"rules", scores.rules}, {"examples", scores.examples}, {"hash", scores.hash}};
    for (const auto& [name, value] : scores.values) of[name] = FiniteOrNull(value);
  }
}

// Of sources, experts and a policy gradient.
void AddFigures(const StepReport& r, Json& line) {
  for (const SourceFigures& source : r.sources) {
    line["source_samples"][source.name] = source.samples;
    line["source_epochs"][source.name] = source.epochs;
  }
  for (const RouterFigures& router : r.routers) {
    line["max_load"][router.block] = FiniteOrNull(router.max_load);
    line["router_entropy"][router.block] = FiniteOrNull(router.entropy);
    if (r.records_loads) line["loads"][router.block] = router.loads;
  }
  if (r.policy) {
    line["clip_fraction"] = FiniteOrNull(r.policy->clip_fraction);
    line["ratio"] = FiniteOrNull(r.policy->ratio);
    line["kl"] = FiniteOrNull(r.policy->kl);
  }
}

void AddScaling(const StepReport& r, Json& line) {
  if (!r.scaling) return;
  line["loss_scale"] = r.scaling->loss_scale;
  line["scale_downs"] = r.scaling->scale_downs;
}

void AddSaves(const SaveFigures& saves, Json& line) {
  if (saves.stall_ms) line["save_stall_ms"] = *saves.stall_ms;
  if (saves.saved_step) line["saved_step"] = *saves.saved_step;
  if (saves.save_ms) line["save_ms"] = *saves.save_ms;
  if (!saves.error.empty()) line["save_error"] = saves.error;
}

// What is not finite is null: loss_bits keeps what a loss was.
Json LineOf(const StepReport& r) {
  Json line = {{"step", r.step},
               {"loss", FiniteOrNull(r.loss)},
               {"loss_bits", Float32Bits(r.loss)},
               {"grad_norm", FiniteOrNull(r.grad_norm)},
               {"lr", r.lr},
               {"tokens", r.tokens},
               {"step_ms", r.step_ms},
               {"enqueue_us", r.enqueue_us},
               {"tokens_per_s", r.tokens_per_s},
               {"mfu", r.mfu},
               {"peak_bytes", r.peak_bytes},
               {"skipped", r.skipped}};
  if (!r.applied) line["offender"] = r.offender;
  if (r.max_loss) line["max_loss"] = *r.max_loss;
  if (r.data_step != r.step) line["data_step"] = r.data_step;
  for (const RollBack& made : r.rolled_back)
    line["rolled_back"].push_back({{"from", made.from}, {"why", made.why}});
  if (r.eval_loss) {
    line["eval_loss"] = FiniteOrNull(*r.eval_loss);
    line["eval_loss_bits"] = Float32Bits(*r.eval_loss);
  }
  AddScores(r, line);
  AddFigures(r, line);
  AddScaling(r, line);
  if (r.balanced_gate) line["gate"] = "balanced";
  if (!r.routers.empty()) line["dropped_pairs"] = r.dropped_pairs;
  if (r.again) line["again"] = true;
  if (r.waiting_batches > 0) line["waiting_batches"] = r.waiting_batches;
  AddSaves(r.saves, line);
  return line;
}

}  // namespace

std::string Float32Bits(double value) {
  return fmt::format("0x{:08x}", std::bit_cast<uint32_t>(static_cast<float>(value)));
}

MetricsFile::MetricsFile(const std::string& run_dir, int64_t resume_step, OldMetrics old,
                         FileSystem& files)
    : lines_(Prepared(run_dir, resume_step, old, &dropped_, &missing_), files) {}

std::string MetricsFile::Append(const StepReport& r) {
  const Json line = LineOf(r);
  const std::lock_guard lock(mutex_);
  const size_t waited = waiting_.size();
  waiting_.push_back(DumpJson(line, {.replace = true}));  // a path is any bytes
  try {
    WriteWaiting();
  } catch (const Error& error) {
    if (waiting_.size() >= kMostWaiting || error.code() != ErrorCode::kIo) throw;
    return waited > 0 ? "" : fmt::format("step {}: {}", r.step, error.what());
  }
  return waited == 0 ? ""
                     : fmt::format("step {}: the lines of {} steps that waited are written", r.step,
                                   waited);
}

void MetricsFile::WriteWaiting() {
  for (; !waiting_.empty(); waiting_.pop_front()) lines_.Append(waiting_.front());
}

size_t MetricsFile::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size();
}

void MetricsFile::Sync() {
  {
    const std::lock_guard lock(mutex_);
    WriteWaiting();
  }
  lines_.Sync();
}

std::vector<EventScalar> ScalarsOf(const StepReport& r) {
  std::vector<EventScalar> scalars = {{"loss", r.loss},
                                      {"grad_norm", r.grad_norm},
                                      {"lr", r.lr},
                                      {"step_ms", r.step_ms},
                                      {"tokens_per_s", r.tokens_per_s},
                                      {"mfu", r.mfu},
                                      {"peak_bytes", static_cast<double>(r.peak_bytes)}};
  if (r.eval_loss) scalars.push_back({"eval_loss", *r.eval_loss});
  for (const SourceLoss& source : r.eval_sources)
    scalars.push_back({"source_eval_loss/" + source.name, source.loss});
  for (const EvalScores& scores : r.scores)
    for (const auto& [name, value] : scores.values)
      scalars.push_back({"scores/" + scores.task + "/" + name, value});
  for (const SourceFigures& source : r.sources)
    scalars.push_back({"source_epochs/" + source.name, source.epochs});
  for (const RouterFigures& router : r.routers) {
    scalars.push_back({"max_load/" + router.block, router.max_load});
    scalars.push_back({"router_entropy/" + router.block, router.entropy});
  }
  if (r.policy) {
    scalars.push_back({"clip_fraction", r.policy->clip_fraction});
    scalars.push_back({"ratio", r.policy->ratio});
    scalars.push_back({"kl", r.policy->kl});
  }
  if (r.scaling) scalars.push_back({"loss_scale", r.scaling->loss_scale});
  if (!r.routers.empty())
    scalars.push_back({"dropped_pairs", static_cast<double>(r.dropped_pairs)});
  if (r.balanced_gate) scalars.push_back({"balanced_gate", 1});
  if (r.saves.stall_ms) scalars.push_back({"save_stall_ms", *r.saves.stall_ms});
  if (r.saves.save_ms) scalars.push_back({"save_ms", *r.saves.save_ms});
  return scalars;
}

StepFigures FiguresOf(const StepReport& r, const SaveTotals& saves) {
  StepFigures figures = {.step = r.step,
                         .loss = r.loss,
                         .grad_norm = r.grad_norm,
                         .lr = r.lr,
                         .tokens_per_s = r.tokens_per_s,
                         .step_seconds = r.step_ms / 1e3,
                         .device_bytes = r.peak_bytes,
                         .skipped = r.skipped,
                         .tokens = r.tokens,
                         .roll_backs = r.roll_backs,
                         .routers = r.routers,
                         .dropped_pairs = r.dropped_so_far,
                         .waiting_batches = r.waiting_batches,
                         .balanced_gate = r.balanced_gate,
                         .sources = r.sources,
                         .policy = r.policy,
                         .scaling = r.scaling,
                         .scores = r.scores};
  if (saves.published + saves.failed > 0)
    figures.saves = {.published = saves.published,
                     .failed = saves.failed,
                     .step = saves.newest,
                     .stall_seconds = saves.stall_ms.empty() ? 0 : saves.stall_ms.back() / 1e3,
                     .seconds = saves.save_ms.empty() ? 0 : saves.save_ms.back() / 1e3};
  return figures;
}

}  // namespace millrace
