// Two runs, side by side: from which step on they differ, by how much, and in what they were made
// differently. Pure: two recorded runs in (run_folder.h), a comparison out.
//
// Units    Differences of losses and norms are b - a. An ulp is a step to the next float32: 0
//          between -0 and 0, none where either is NaN. Values differ when their bits do, except for
//          two NaNs of grad_norm, whose bits are not recorded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/record/run_folder.h"

namespace millrace {

// Floats between a and b, and one of the two.
std::optional<int64_t> UlpsBetween(float a, float b);

struct ValuePair {
  int64_t step = 0;
  float a = 0, b = 0;
  std::optional<int64_t> ulps;
  double difference() const { return static_cast<double>(b) - static_cast<double>(a); }
};

// One column of the metrics, over the steps in which both runs have it.
struct SeriesComparison {
  std::string name;  // "loss", "grad_norm", "eval_loss"
  int64_t common = 0, differing = 0;
  std::optional<ValuePair> first;  // that differs
  // After the first: 1, 10, 100, ... steps later (or at the next step that both have), and the
  // last.
  std::vector<ValuePair> growth;
};

struct StepRange {
  int64_t first = 0, last = 0;
  bool operator==(const StepRange&) const = default;
};

struct SkippedStep {
  int64_t step = 0;
  std::string offender;
};

// A roll-back from step `from` to the one before `step`.
struct RolledBackStep {
  int64_t step = 0, from = 0;
  std::string why;
};

// A value, and the steps after which it was in force: one entry for a run that was
// never resumed with another.
struct ValueFrom {
  int64_t step = 0;
  std::string value;   // JSON text of a key, the hash of a stage, an entry of the environment
  std::string origin;  // of a key
  bool operator==(const ValueFrom&) const = default;
};

// What is not known has no entries.
struct Difference {
  std::string name;
  std::vector<ValueFrom> a, b;
};

struct HashComparison {
  std::string name;
  std::optional<std::string> a, b;  // none: there is no summary
  bool known() const { return a && b; }
  bool equal() const { return a == b; }
};

struct RunComparison {
  SeriesComparison loss, grad_norm, eval_loss;
  std::vector<StepRange> only_a, only_b;  // steps
  std::vector<SkippedStep> skipped_a, skipped_b;
  std::vector<RolledBackStep> rolled_back_a, rolled_back_b;
  std::vector<HashComparison> hashes;  // in the order of kFinalHashNames
  // Configuration keys that differ, but for run.dir; world and backend too.
  std::vector<Difference> keys;
  std::vector<Difference> stages;  // plan stages that differ, in the order of kPlanStageNames
  // What the runs ran on, in the order recorded, but for host, start and command: no part of any
  // verdict. The steps of changes do not count, their order does.
  std::vector<Difference> environment;
  bool keys_known = false, stages_known = false, environment_known = false;  // of both runs

  // Nothing that was recorded of the results differs: same steps, same losses, held-out losses,
  // skipped updates, hashes of parameters and optimizer. A hash that only one run has differs.
  // Where both lack them, norms count too: the last update shows in nothing else; and there must be
  // a step to compare.
  bool same_results() const;
  bool same_skips() const;  // the updates of the same steps were skipped
  // And the hashes of plan and tuning.
  bool same() const;
};

RunComparison CompareRuns(const RecordedRun& a, const RecordedRun& b);

// The first line in which two texts differ; 0 when they are equal. A text that
// has ended has empty lines.
struct LineDifference {
  int64_t line = 0;  // from 1
  std::string a, b;
};
LineDifference FirstDifferingLine(std::string_view a, std::string_view b);

}  // namespace millrace
