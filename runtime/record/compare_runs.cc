#include "runtime/record/compare_runs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <utility>

#include "runtime/record/run_environment.h"

namespace millrace {
namespace {

// Floats in ascending order as consecutive integers, -0 and 0 as one.
int64_t Ordinal(float value) {
  const auto bits = std::bit_cast<int32_t>(value);
  return bits >= 0 ? int64_t{bits} : int64_t{std::numeric_limits<int32_t>::min()} - bits;
}

bool BitsDiffer(const ValuePair& pair) {
  return std::bit_cast<uint32_t>(pair.a) != std::bit_cast<uint32_t>(pair.b);
}

bool NormsDiffer(const ValuePair& pair) {
  return BitsDiffer(pair) && !(std::isnan(pair.a) && std::isnan(pair.b));
}

// pairs[i] is ascending by step; pairs[first] differs.
std::vector<ValuePair> Growth(const std::vector<ValuePair>& pairs, size_t first) {
  std::vector<ValuePair> growth;
  const auto add = [&](const ValuePair& pair) {
    if (pair.step > pairs[first].step && (growth.empty() || pair.step > growth.back().step))
      growth.push_back(pair);
  };
  const int64_t last = pairs.back().step;
  for (int64_t later = 1; later <= last - pairs[first].step; later *= 10)
    add(*std::lower_bound(pairs.begin(), pairs.end(), pairs[first].step + later,
                          [](const ValuePair& pair, int64_t step) { return pair.step < step; }));
  add(pairs.back());
  return growth;
}

template <class Column, class Differ>
SeriesComparison CompareSeries(std::string name, const RecordedRun& a, const RecordedRun& b,
                               Column&& column, Differ&& differ) {
  SeriesComparison series;
  series.name = std::move(name);
  std::vector<ValuePair> pairs;
  std::optional<size_t> first;
  for (const auto& [step, in_a] : a.metrics.steps) {
    const auto in_b = b.metrics.steps.find(step);
    if (in_b == b.metrics.steps.end()) continue;
    const std::optional<float> value_a = column(in_a), value_b = column(in_b->second);
    if (!value_a || !value_b) continue;
    pairs.push_back({step, *value_a, *value_b, UlpsBetween(*value_a, *value_b)});
    if (!differ(pairs.back())) continue;
    ++series.differing;
    if (!first) first = pairs.size() - 1;
  }
  series.common = static_cast<int64_t>(pairs.size());
  if (!first) return series;
  series.first = pairs[*first];
  series.growth = Growth(pairs, *first);
  return series;
}

// Steps of `a` that `b` lacks; a range ends where the steps do, or where `b` has one.
std::vector<StepRange> OnlyIn(const RecordedMetrics& a, const RecordedMetrics& b) {
  std::vector<StepRange> ranges;
  for (const auto& [step, unused] : a.steps) {
    if (b.steps.contains(step)) continue;
    if (!ranges.empty() && ranges.back().last + 1 == step)
      ranges.back().last = step;
    else
      ranges.push_back({step, step});
  }
  return ranges;
}

std::vector<SkippedStep> SkippedIn(const RecordedMetrics& metrics) {
  std::vector<SkippedStep> skipped;
  for (const auto& [number, step] : metrics.steps)
    if (!step.offender.empty()) skipped.push_back({number, step.offender});
  return skipped;
}

std::vector<RolledBackStep> RolledBackIn(const RecordedMetrics& metrics) {
  std::vector<RolledBackStep> rolled_back;
  for (const auto& [number, step] : metrics.steps)
    for (const auto& [from, why] : step.rolled_back) rolled_back.push_back({number, from, why});
  return rolled_back;
}

std::optional<std::string> HashOf(const RecordedRun& run, const std::string& name) {
  if (!run.summary) return std::nullopt;
  const auto found = run.summary->hashes.find(name);
  return found == run.summary->hashes.end() ? std::optional<std::string>() : found->second;
}

void Append(std::vector<ValueFrom>& values, ValueFrom next) {
  if (values.empty() || values.back().value != next.value) values.push_back(std::move(next));
}

// By key path, and as "world" and "backend" what the launcher and the host decided.
std::map<std::string, std::vector<ValueFrom>> KeysOf(const RunHistory& history) {
  std::map<std::string, std::vector<ValueFrom>> keys;
  for (const RecordedCall& call : history) {
    for (const auto& [key, recorded] : call.keys)
      Append(keys[key], {call.step, recorded.value, recorded.origin});
    Append(keys["world"], {call.step, std::to_string(call.world), "launch"});
    Append(keys["backend"], {call.step, "\"" + call.backend + "\"", "host"});
  }
  keys.erase("run.dir");  // every run has its own
  return keys;
}

std::map<std::string, std::vector<ValueFrom>> StagesOf(const RecordedRun& run) {
  std::map<std::string, std::vector<ValueFrom>> stages;
  for (const RecordedCall& call : run.history)
    for (const auto& [name, hash] : call.plan_stages) Append(stages[name], {call.step, hash, ""});
  if (stages.empty() && run.summary)
    for (const auto& [name, hash] : run.summary->plan_stages) Append(stages[name], {0, hash, ""});
  return stages;
}

bool SameValues(const std::vector<ValueFrom>& a, const std::vector<ValueFrom>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const ValueFrom& x, const ValueFrom& y) {
                      return x.step == y.step && x.value == y.value;
                    });
}

std::vector<Difference> Differing(const std::vector<std::string>& names,
                                  std::map<std::string, std::vector<ValueFrom>> a,
                                  std::map<std::string, std::vector<ValueFrom>> b) {
  std::vector<Difference> differences;
  for (const std::string& name : names)
    if (!SameValues(a[name], b[name])) differences.push_back({name, a[name], b[name]});
  return differences;
}

std::vector<Difference> DifferingKeys(const RecordedRun& a, const RecordedRun& b) {
  const auto in_a = KeysOf(a.history), in_b = KeysOf(b.history);
  std::set<std::string> names;
  for (const auto* keys : {&in_a, &in_b})
    for (const auto& [name, unused] : *keys) names.insert(name);
  return Differing({names.begin(), names.end()}, in_a, in_b);
}

bool IsOwnOfEachCall(const std::string& entry) {
  return entry == kHostEntry || entry == kStartEntry || entry == kCommandEntry;
}

std::map<std::string, std::vector<ValueFrom>> EnvironmentOf(const RunHistory& history) {
  std::map<std::string, std::vector<ValueFrom>> entries;
  for (const RecordedCall& call : history)
    for (const auto& [name, value] : call.environment)
      if (!IsOwnOfEachCall(name)) Append(entries[name], {call.step, value, ""});
  return entries;
}

// Names of entries as they first appear.
std::vector<std::string> EntryNames(const std::vector<const RunHistory*>& histories) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const RunHistory* history : histories)
    for (const RecordedCall& call : *history)
      for (const auto& [name, unused] : call.environment)
        if (seen.insert(name).second) names.push_back(name);
  return names;
}

bool SameSequence(const std::vector<ValueFrom>& a, const std::vector<ValueFrom>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const ValueFrom& x, const ValueFrom& y) { return x.value == y.value; });
}

void CompareEnvironments(const RecordedRun& a, const RecordedRun& b, RunComparison& c) {
  auto in_a = EnvironmentOf(a.history), in_b = EnvironmentOf(b.history);
  c.environment_known = !in_a.empty() && !in_b.empty();
  if (!c.environment_known) return;
  for (const std::string& name : EntryNames({&a.history, &b.history}))
    if (!SameSequence(in_a[name], in_b[name]))
      c.environment.push_back({name, in_a[name], in_b[name]});
}

bool IsOfResults(const HashComparison& hash) {
  return hash.name == "param_hash" || hash.name == "optimizer_hash";
}

}  // namespace

std::optional<int64_t> UlpsBetween(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::nullopt;
  return std::abs(Ordinal(a) - Ordinal(b));
}

bool RunComparison::same_skips() const {
  return std::equal(skipped_a.begin(), skipped_a.end(), skipped_b.begin(), skipped_b.end(),
                    [](const SkippedStep& x, const SkippedStep& y) { return x.step == y.step; });
}

bool RunComparison::same_results() const {
  const bool ended = std::any_of(hashes.begin(), hashes.end(), [](const HashComparison& hash) {
    return IsOfResults(hash) && hash.known();
  });
  return only_a.empty() && only_b.empty() && !loss.first && !eval_loss.first && same_skips() &&
         (ended || (!grad_norm.first && loss.common > 0)) &&
         std::all_of(hashes.begin(), hashes.end(),
                     [](const HashComparison& hash) { return hash.equal() || !IsOfResults(hash); });
}

bool RunComparison::same() const {
  return same_results() && std::all_of(hashes.begin(), hashes.end(),
                                       [](const HashComparison& hash) { return hash.equal(); });
}

RunComparison CompareRuns(const RecordedRun& a, const RecordedRun& b) {
  RunComparison c;
  c.loss = CompareSeries(
      "loss", a, b, [](const MetricsLine& step) { return std::optional<float>(step.loss); },
      BitsDiffer);
  c.grad_norm = CompareSeries(
      "grad_norm", a, b,
      [](const MetricsLine& step) { return std::optional<float>(step.grad_norm); }, NormsDiffer);
  c.eval_loss = CompareSeries(
      "eval_loss", a, b, [](const MetricsLine& step) { return step.eval_loss; }, BitsDiffer);
  c.only_a = OnlyIn(a.metrics, b.metrics);
  c.only_b = OnlyIn(b.metrics, a.metrics);
  c.skipped_a = SkippedIn(a.metrics);
  c.skipped_b = SkippedIn(b.metrics);
  c.rolled_back_a = RolledBackIn(a.metrics);
  c.rolled_back_b = RolledBackIn(b.metrics);
  for (const std::string_view name : kFinalHashNames)
    c.hashes.push_back(
        {std::string(name), HashOf(a, std::string(name)), HashOf(b, std::string(name))});
  c.keys_known = !a.history.empty() && !b.history.empty();
  if (c.keys_known) c.keys = DifferingKeys(a, b);
  const auto stages_a = StagesOf(a), stages_b = StagesOf(b);
  c.stages_known = !stages_a.empty() && !stages_b.empty();
  if (c.stages_known)
    c.stages = Differing({kPlanStageNames.begin(), kPlanStageNames.end()}, stages_a, stages_b);
  CompareEnvironments(a, b, c);
  return c;
}

LineDifference FirstDifferingLine(std::string_view a, std::string_view b) {
  const auto next = [](std::string_view& text) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    return line;
  };
  for (int64_t number = 1; !a.empty() || !b.empty(); ++number) {
    const std::string_view line_a = next(a), line_b = next(b);
    if (line_a != line_b) return {number, std::string(line_a), std::string(line_b)};
  }
  return {};
}

}  // namespace millrace
