#include "runtime/run/training/rebuilt_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <vector>

#include "runtime/base/counted.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/quantile.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/record/run_history.h"
#include "runtime/record/summary.h"
#include "runtime/run/prediction.h"
#include "runtime/run/training/call_record.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

struct Line {
  double loss = 0;
  std::optional<double> eval_loss;
  double step_ms = 0;
  int64_t peak_bytes = 0;
  bool again = false;
  int64_t waiting_batches = 0;
};

// A loss that was not finite is null in the file; its bits say what it was.
double LossOf(const Json& line, const char* key) {
  if (line.at(key).is_number()) return line.at(key).get<double>();
  const std::string bits = line.at(std::string(key) + "_bits").get<std::string>();
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(bits, nullptr, 16)));
}

struct Metrics {
  std::map<int64_t, Line> lines;    // by step
  std::vector<int64_t> unreadable;  // numbers of lines, from 1
};

// Of steps up to `last`; the last line of a step counts. A last line that is not whole is none.
Metrics ReadMetrics(const std::string& path, int64_t last) {
  Metrics metrics;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return metrics;  // a pipe may have no end
  std::ifstream in(path);
  std::string text;
  for (int64_t number = 1; std::getline(in, text) && !in.eof(); ++number) {
    try {
      const Json json = ParseJson(text);
      const auto step = json.at("step").get<int64_t>();
      if (step > last) continue;
      Line line = {LossOf(json, "loss"),
                   {},
                   json.at("step_ms").get<double>(),
                   json.at("peak_bytes").get<int64_t>(),
                   json.contains("again"),
                   json.value("waiting_batches", int64_t{0})};
      if (json.contains("eval_loss")) line.eval_loss = LossOf(json, "eval_loss");
      metrics.lines[step] = line;
    } catch (const std::exception&) {  // not JSON, or values that are missing or of another type
      metrics.unreadable.push_back(number);
    }
  }
  return metrics;
}

// What the summary lacks, or does not know for sure: "; losses are missing, too: ..."; or "".
std::string Shortfall(const Metrics& metrics, int64_t steps) {
  std::string text;
  if (!metrics.unreadable.empty()) {
    constexpr size_t kShown = 10;
    const size_t shown = std::min(metrics.unreadable.size(), kShown);
    const auto begin = metrics.unreadable.begin();
    text = fmt::format(
        "; of metrics.jsonl line{} {}{} cannot be read: median and peak are those of the others",
        metrics.unreadable.size() == 1 ? "" : "s",
        fmt::join(begin, begin + static_cast<std::ptrdiff_t>(shown), ", "),
        shown == metrics.unreadable.size()
            ? ""
            : fmt::format(" and {} more", metrics.unreadable.size() - shown));
  }
  std::vector<int64_t> absent;
  for (const int64_t step : std::set<int64_t>{1, steps})
    if (!metrics.lines.contains(step)) absent.push_back(step);
  if (!absent.empty())
    text += fmt::format("; losses are missing, too: metrics.jsonl has no line of step {}",
                        fmt::join(absent, " and "));
  return text;
}

TrainResult ResultOf(const std::map<int64_t, Line>& lines, int64_t last_step) {
  TrainResult result;
  result.last_step = last_step;
  const auto at = [&](int64_t step) {
    const auto line = lines.find(step);
    return line == lines.end() ? nullptr : &line->second;
  };
  if (const Line* first = at(1)) result.first_loss = first->loss;
  if (const Line* last = at(last_step)) {
    result.last_loss = last->loss;
    result.eval_after = last->eval_loss;
  }
  return result;
}

// Why this call is not what the run's last call was; "": it is, as far as that was recorded.
std::string OtherThanLastCall(const Session& session, const std::vector<PlanStage>& stages,
                              const ResumedRun& resumed) {
  if (resumed.world != session.world())
    return fmt::format("it was trained by {}, and now there are {}", Counted(resumed.world, "rank"),
                       session.world());
  std::optional<RunHistory> history;
  try {
    history = ReadRunHistory(session.config().run.dir);
  } catch (const Error&) {
    return "";  // no history of ours: the checkpoint and the lines say enough
  }
  if (!history || history->empty()) return "";
  for (const PlanStage& stage : stages) {
    const auto recorded = history->back().plan_stages.find(stage.name);
    if (recorded != history->back().plan_stages.end() && recorded->second != stage.Hash())
      return fmt::format("its last call had another {}", stage.name);
  }
  return "";
}

}  // namespace

std::string WriteMissingSummary(Session& session, const Machine& machine,
                                const ResumedRun& resumed) {
  Communicator& world = session.engine().comms().world();
  const std::string& run_dir = session.config().run.dir;
  const bool leader = world.rank() == 0;
  const bool missing =
      world.HostBroadcast(leader && !HasSummary(run_dir) ? "missing" : "", 0) == "missing";
  if (!missing) return "";
  const std::string param_hash = ParamHash(session.engine());
  const std::string optimizer_hash = OptimizerHash(session.engine());
  if (!leader) return "";
  const std::vector<PlanStage> stages = PlanStages(session.config(), session.run());
  const std::string other = OtherThanLastCall(session, stages, resumed);
  if (!other.empty())
    return fmt::format(
        "{}/summary.json is missing and cannot be written by this call: {}. The command that ended "
        "the run writes it",
        run_dir, other);
  const int64_t steps = resumed.progress.step;
  const Metrics metrics = ReadMetrics(run_dir + "/metrics.jsonl", steps);
  StepsDone done{.steps = steps,
                 .launches = PredictGraphLaunches(session, steps, /*captured=*/false),
                 .step_ms = std::numeric_limits<double>::quiet_NaN()};
  std::vector<double> step_ms;
  for (const auto& [step, line] : metrics.lines) {
    step_ms.push_back(line.step_ms);
    done.again += line.again;
    done.peak_bytes = std::max(done.peak_bytes.value_or(0), line.peak_bytes);
  }
  if (!step_ms.empty()) done.step_ms = Median(step_ms);
  Summary summary = SummaryOf(session, machine, done);
  summary.result = ResultOf(metrics.lines, steps);
  if (const auto last = metrics.lines.find(steps); last != metrics.lines.end())
    summary.waiting_batches = last->second.waiting_batches;
  summary.param_hash = param_hash;
  summary.optimizer_hash = optimizer_hash;
  summary.plan_stages = stages;
  summary.rebuilt_from = std::filesystem::path(resumed.path).filename().string();
  summary.unreadable_lines = metrics.unreadable;
  WriteSummary(run_dir, summary);
  return fmt::format(
      "{}/summary.json was missing: it is written from {} and metrics.jsonl, without what only the "
      "killed call knew{}",
      run_dir, summary.rebuilt_from, Shortfall(metrics, steps));
}

}  // namespace millrace
