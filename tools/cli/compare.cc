// millrace compare: two runs side by side: from which step on they differ, by how much, and what
// was different when they were made.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "runtime/api/backend.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/record/compare_runs.h"
#include "runtime/record/metrics.h"
#include "runtime/record/run_folder.h"
#include "tools/cli/command.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDiffer = 1;  // exit code

struct Side {
  std::string dir;
  RecordedRun run;
  std::map<std::string, std::string> stage_texts;  // what could be planned again
};

// The stages of the run's last call, planned again here; those whose hash is not the recorded one
// are left out: this version of the program plans otherwise than the one that trained.
std::map<std::string, std::string> PlanAgain(const RecordedRun& run) {
  std::map<std::string, std::string> texts;
  if (run.history.empty()) return texts;
  const RecordedCall& call = run.history.back();
  try {
    const Config config = ConfigOf(call);
    const auto world = static_cast<int>(call.world);
    const BackendTraits traits =
        TraitsOf(call.backend == "cuda" ? Backend::kCuda : Backend::kCpu, world);
    const AssembledRun planned = Assemble(config, world, traits, {"train"});
    for (const PlanStage& stage : PlanStages(config, planned)) {
      const auto recorded = call.plan_stages.find(stage.name);
      if (recorded != call.plan_stages.end() && recorded->second == stage.Hash())
        texts[stage.name] = stage.text;
    }
  } catch (const Error&) {
    // Another version's keys or models: the hashes have said that the stages
    // differ, no more can be shown.
  }
  return texts;
}

LineDifference FirstDifference(const std::string& stage, const Side& a, const Side& b) {
  const auto in_a = a.stage_texts.find(stage), in_b = b.stage_texts.find(stage);
  if (in_a == a.stage_texts.end() || in_b == b.stage_texts.end()) return {};
  return FirstDifferingLine(in_a->second, in_b->second);
}

// ---- JSON

Json Number(float value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json PairJson(const ValuePair& pair) {
  return {
      {"step", pair.step},
      {"a", Number(pair.a)},
      {"b", Number(pair.b)},
      {"a_bits", Float32Bits(pair.a)},
      {"b_bits", Float32Bits(pair.b)},
      {"difference", std::isfinite(pair.difference()) ? Json(pair.difference()) : Json(nullptr)},
      {"ulps", pair.ulps ? Json(*pair.ulps) : Json(nullptr)}};
}

Json SeriesJson(const SeriesComparison& series) {
  Json growth = Json::array();
  for (const ValuePair& pair : series.growth) growth.push_back(PairJson(pair));
  return {{"common_steps", series.common},
          {"differing_steps", series.differing},
          {"first", series.first ? PairJson(*series.first) : Json(nullptr)},
          {"growth", growth}};
}

Json SideJson(const Side& side) {
  return {{"dir", side.dir},
          {"steps", side.run.metrics.steps.size()},
          {"last_step", side.run.summary ? Json(side.run.summary->last_step) : Json(nullptr)},
          {"torn_last_line", side.run.metrics.torn},
          {"repeated_lines", side.run.metrics.repeated}};
}

Json RangesJson(const std::vector<StepRange>& ranges) {
  Json all = Json::array();
  for (const StepRange& range : ranges) all.push_back({range.first, range.last});
  return all;
}

Json SkippedJson(const std::vector<SkippedStep>& skipped) {
  Json all = Json::array();
  for (const SkippedStep& step : skipped)
    all.push_back({{"step", step.step}, {"offender", step.offender}});
  return all;
}

Json RolledBackJson(const std::vector<RolledBackStep>& rolled_back) {
  Json all = Json::array();
  for (const RolledBackStep& made : rolled_back)
    all.push_back({{"from", made.from}, {"to", made.step - 1}, {"why", made.why}});
  return all;
}

Json KeyJson(const Difference& key) {
  const auto values = [](const std::vector<ValueFrom>& from) {
    Json all = Json::array();
    for (const ValueFrom& v : from)
      all.push_back(
          {{"after_step", v.step}, {"value", ParseOrderedJson(v.value)}, {"origin", v.origin}});
    return all;
  };
  return {{"key", key.name}, {"a", values(key.a)}, {"b", values(key.b)}};
}

Json StageJson(const Difference& stage, const Side& a, const Side& b) {
  const auto hashes = [](const std::vector<ValueFrom>& from) {
    Json all = Json::array();
    for (const ValueFrom& v : from) all.push_back({{"after_step", v.step}, {"hash", v.value}});
    return all;
  };
  const LineDifference line = FirstDifference(stage.name, a, b);
  const Json first =
      line.line == 0 ? Json(nullptr) : Json{{"line", line.line}, {"a", line.a}, {"b", line.b}};
  return {{"stage", stage.name},
          {"a", hashes(stage.a)},
          {"b", hashes(stage.b)},
          {"first_difference", first}};
}

Json EnvironmentJson(const Difference& entry) {
  const auto values = [](const std::vector<ValueFrom>& from) {
    Json all = Json::array();
    for (const ValueFrom& v : from) all.push_back({{"after_step", v.step}, {"value", v.value}});
    return all;
  };
  return {{"name", entry.name}, {"a", values(entry.a)}, {"b", values(entry.b)}};
}

Json ComparisonJson(const RunComparison& c, const Side& a, const Side& b) {
  Json hashes = Json::object(), keys = Json::array(), stages = Json::array(),
       environment = Json::array();
  const auto text = [](const std::optional<std::string>& hash) {
    return hash ? Json(*hash) : Json(nullptr);
  };
  for (const HashComparison& hash : c.hashes)
    hashes[hash.name] = {{"a", text(hash.a)}, {"b", text(hash.b)}, {"equal", hash.equal()}};
  for (const Difference& key : c.keys) keys.push_back(KeyJson(key));
  for (const Difference& stage : c.stages) stages.push_back(StageJson(stage, a, b));
  for (const Difference& entry : c.environment) environment.push_back(EnvironmentJson(entry));
  return {{"same", c.same()},
          {"same_results", c.same_results()},
          {"a", SideJson(a)},
          {"b", SideJson(b)},
          {"loss", SeriesJson(c.loss)},
          {"grad_norm", SeriesJson(c.grad_norm)},
          {"eval_loss", SeriesJson(c.eval_loss)},
          {"steps_only_in_a", RangesJson(c.only_a)},
          {"steps_only_in_b", RangesJson(c.only_b)},
          {"skipped_in_a", SkippedJson(c.skipped_a)},
          {"skipped_in_b", SkippedJson(c.skipped_b)},
          {"rolled_back_in_a", RolledBackJson(c.rolled_back_a)},
          {"rolled_back_in_b", RolledBackJson(c.rolled_back_b)},
          {"hashes", hashes},
          {"config", c.keys_known ? keys : Json(nullptr)},
          {"plan_stages", c.stages_known ? stages : Json(nullptr)},
          {"environment", c.environment_known ? environment : Json(nullptr)}};
}

// ---- text

std::string Shortened(const std::string& text, size_t most) {
  return text.size() <= most ? text : text.substr(0, most - 3) + "...";
}

std::string SideText(const char* name, const Side& side) {
  const RecordedMetrics& metrics = side.run.metrics;
  std::string text = fmt::format("{}  {}: {} steps", name, side.dir, metrics.steps.size());
  if (!metrics.steps.empty())
    text += fmt::format(", the last is {}", metrics.steps.rbegin()->first);
  if (!side.run.summary) text += "; no summary.json: it goes on, or was killed";
  if (metrics.torn) text += "; the last line of metrics.jsonl is cut off and left out";
  if (metrics.repeated > 0)
    text += fmt::format("; {} steps are there twice, the later line counts", metrics.repeated);
  if (!side.run.history_problem.empty()) text += "; " + side.run.history_problem;
  return text + "\n";
}

std::string Verdict(const RunComparison& c) {
  const bool hashes_known = std::all_of(c.hashes.begin(), c.hashes.end(),
                                        [](const HashComparison& hash) { return hash.known(); });
  if (c.same())
    return hashes_known ? fmt::format("The same: all {} losses and the final hashes are equal.",
                                      c.loss.common)
                        : fmt::format("No difference in {} losses; there are no final hashes.",
                                      c.loss.common);
  const bool otherwise_made =
      std::any_of(c.hashes.begin(), c.hashes.end(),
                  [](const HashComparison& hash) { return hash.known() && !hash.equal(); });
  if (c.same_results())
    return otherwise_made
               ? "The same results, bit for bit, by another plan or other algorithms."
               : "The same results, bit for bit; the plan or algorithms of one run are not known.";
  if (c.loss.first) return fmt::format("The losses differ, from step {} on.", c.loss.first->step);
  if (c.eval_loss.first)
    return fmt::format("The losses are equal; held-out losses differ, from step {} on.",
                       c.eval_loss.first->step);
  const bool also_otherwise = !c.same_skips() || c.grad_norm.first;
  if (c.loss.common > 0 && also_otherwise && !hashes_known)
    return fmt::format("The losses are equal in the {} steps that both have; {} differ.",
                       c.loss.common, c.grad_norm.first ? "gradient norms" : "skipped updates");
  if (c.loss.common == 0 && !hashes_known && c.only_a.empty() && c.only_b.empty())
    return "There is nothing to compare: neither run has a step.";
  if (!c.only_a.empty() || !c.only_b.empty())
    return c.loss.common == 0
               ? "The runs have no step in common."
               : fmt::format("No difference in the {} steps that both have.", c.loss.common);
  return hashes_known ? "All losses are equal, but the runs end with other values."
                      : "All losses are equal; the final hashes of one run are not known.";
}

std::string SeriesText(const SeriesComparison& series) {
  if (series.common == 0) return "";
  if (!series.first)
    return fmt::format("{}: equal in all {} common steps\n", series.name, series.common);
  std::string text =
      fmt::format("{}: differs in {} of {} common steps\n  {:>8} {:>14} {:>14} {:>12} {:>12}\n",
                  series.name, series.differing, series.common, "step", "A", "B", "B - A", "ulps");
  const auto row = [&](const ValuePair& pair) {
    text += fmt::format("  {:>8} {:>14.8g} {:>14.8g} {:>+12.3g} {:>12}\n", pair.step, pair.a,
                        pair.b, pair.difference(), pair.ulps ? std::to_string(*pair.ulps) : "-");
  };
  row(*series.first);
  for (const ValuePair& pair : series.growth) row(pair);
  return text;
}

std::string StepsText(const char* title, const std::vector<StepRange>& ranges) {
  if (ranges.empty()) return "";
  std::vector<std::string> words;
  for (const StepRange& range : ranges)
    words.push_back(range.first == range.last ? std::to_string(range.first)
                                              : fmt::format("{}-{}", range.first, range.last));
  return fmt::format("{}: {}\n", title, Shortened(fmt::format("{}", fmt::join(words, ", ")), 200));
}

std::string SkippedText(const char* title, const std::vector<SkippedStep>& skipped) {
  if (skipped.empty()) return "";
  std::vector<std::string> words;
  for (const SkippedStep& step : skipped)
    words.push_back(fmt::format("{} ({})", step.step, step.offender));
  return fmt::format("{}: {}\n", title, Shortened(fmt::format("{}", fmt::join(words, ", ")), 200));
}

std::string RolledBackText(const char* title, const std::vector<RolledBackStep>& rolled_back) {
  if (rolled_back.empty()) return "";
  std::vector<std::string> words;
  for (const RolledBackStep& made : rolled_back)
    words.push_back(fmt::format("from {} to {} ({})", made.from, made.step - 1, made.why));
  return fmt::format("{}: {}\n", title, Shortened(fmt::format("{}", fmt::join(words, ", ")), 200));
}

std::string HashesText(const RunComparison& c) {
  std::vector<std::string> words;
  for (const HashComparison& hash : c.hashes) {
    const char* const what = hash.known()         ? hash.equal() ? "equal" : "differs"
                             : !hash.a && !hash.b ? "not known"
                             : hash.a             ? "not known of B"
                                                  : "not known of A";
    words.push_back(fmt::format("{} {}", hash.name, what));
  }
  return fmt::format("final hashes: {}\n", fmt::join(words, ", "));
}

std::string ValuesText(const std::vector<ValueFrom>& values) {
  if (values.empty()) return "not recorded";
  std::string text;
  for (const ValueFrom& v : values) {
    if (&v != &values.front()) text += fmt::format(", after step {} ", v.step);
    text += fmt::format("{} ({})", Shortened(v.value, 60), v.origin);
  }
  return text;
}

std::string KeysText(const RunComparison& c) {
  if (!c.keys_known) return "configuration: not recorded by both runs (config.json)\n";
  if (c.keys.empty()) return "configuration: equal, run.dir apart\n";
  std::string text = "configuration: differs\n";
  size_t width = 0;
  for (const Difference& key : c.keys) width = std::max(width, key.name.size());
  for (const Difference& key : c.keys)
    text += fmt::format("  {:<{}}  A {}\n  {:<{}}  B {}\n", key.name, width, ValuesText(key.a), "",
                        width, ValuesText(key.b));
  return text;
}

// The words of `line` that `other` lacks, for one line of text.
std::string OwnWords(const std::string& line, const std::string& other) {
  std::istringstream words(line), others(other);
  std::set<std::string> known;
  for (std::string word; others >> word;) known.insert(word);
  std::string own;
  for (std::string word; words >> word;)
    if (!known.contains(word)) own += (own.empty() ? "" : " ") + word;
  return own.empty() ? "-" : Shortened(own, 100);
}

std::string StagesText(const RunComparison& c, const Side& a, const Side& b) {
  if (!c.stages_known) return "plan stages: not recorded by both runs\n";
  if (c.stages.empty()) return "plan stages: equal\n";
  std::string text = "plan stages: differ\n";
  for (const Difference& stage : c.stages) {
    const LineDifference line = FirstDifference(stage.name, a, b);
    text += fmt::format("  {:<16}", stage.name);
    text += line.line == 0 ? "  by hash\n"
                           : fmt::format("  first in line {}\n    A {}\n    B {}\n", line.line,
                                         OwnWords(line.a, line.b), OwnWords(line.b, line.a));
  }
  return text;
}

// For people: no verdict knows of it.
std::string EnvironmentText(const RunComparison& c) {
  if (!c.environment_known || c.environment.empty()) return "";
  const auto values = [](const std::vector<ValueFrom>& from) {
    std::vector<std::string> words;
    for (const ValueFrom& v : from)
      words.push_back((words.empty() ? "" : fmt::format("after step {} ", v.step)) +
                      Shortened(v.value, 200));
    return words.empty() ? "not recorded" : fmt::format("{}", fmt::join(words, ", "));
  };
  std::string text = "environment: differs\n";
  size_t width = 0;
  for (const Difference& entry : c.environment) width = std::max(width, entry.name.size());
  for (const Difference& entry : c.environment)
    text += fmt::format("  {:<{}}  A {}\n  {:<{}}  B {}\n", entry.name, width, values(entry.a), "",
                        width, values(entry.b));
  return text;
}

}  // namespace

int CompareVerb(const CompareArguments& arguments) {
  Side a{arguments.a, ReadRunFolder(arguments.a), {}},
      b{arguments.b, ReadRunFolder(arguments.b), {}};
  const RunComparison c = CompareRuns(a.run, b.run);
  if (!c.stages.empty()) {
    a.stage_texts = PlanAgain(a.run);
    b.stage_texts = PlanAgain(b.run);
  }
  if (arguments.json)
    std::cout << DumpJson(ComparisonJson(c, a, b), {.replace = true}) << std::endl;
  else
    std::cout << Verdict(c) << "\n"
              << SideText("A", a) << SideText("B", b) << SeriesText(c.loss)
              << SeriesText(c.grad_norm) << SeriesText(c.eval_loss)
              << StepsText("steps only in A", c.only_a) << StepsText("steps only in B", c.only_b)
              << SkippedText("skipped in A", c.skipped_a)
              << SkippedText("skipped in B", c.skipped_b)
              << RolledBackText("rolled back in A", c.rolled_back_a)
              << RolledBackText("rolled back in B", c.rolled_back_b) << HashesText(c) << KeysText(c)
              << StagesText(c, a, b) << EnvironmentText(c) << std::flush;
  return c.same() ? 0 : kDiffer;
}

}  // namespace millrace
