#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "tools/cli/runs/comparison.h"

namespace millrace {
namespace {

std::string Shortened(const std::string& text, size_t most) {
  return text.size() <= most ? text : text.substr(0, most - 3) + "...";
}

std::string SideText(const char* name, const ComparedSide& side) {
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

std::string StagesText(const RunComparison& c, const ComparedSide& a, const ComparedSide& b) {
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

LineDifference FirstDifference(const std::string& stage, const ComparedSide& a,
                               const ComparedSide& b) {
  const auto in_a = a.stage_texts.find(stage), in_b = b.stage_texts.find(stage);
  if (in_a == a.stage_texts.end() || in_b == b.stage_texts.end()) return {};
  return FirstDifferingLine(in_a->second, in_b->second);
}

std::string ComparisonText(const RunComparison& c, const ComparedSide& a, const ComparedSide& b) {
  return Verdict(c) + "\n" + SideText("A", a) + SideText("B", b) + SeriesText(c.loss) +
         SeriesText(c.grad_norm) + SeriesText(c.eval_loss) +
         StepsText("steps only in A", c.only_a) + StepsText("steps only in B", c.only_b) +
         SkippedText("skipped in A", c.skipped_a) + SkippedText("skipped in B", c.skipped_b) +
         RolledBackText("rolled back in A", c.rolled_back_a) +
         RolledBackText("rolled back in B", c.rolled_back_b) + HashesText(c) + KeysText(c) +
         StagesText(c, a, b) + EnvironmentText(c);
}

}  // namespace millrace
