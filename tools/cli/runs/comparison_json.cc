#include "runtime/base/json.h"
#include "runtime/record/metrics.h"
#include "tools/cli/runs/comparison.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

Json PairJson(const ValuePair& pair) {
  return {{"step", pair.step},
          {"a", FiniteOrNull(pair.a)},
          {"b", FiniteOrNull(pair.b)},
          {"a_bits", Float32Bits(pair.a)},
          {"b_bits", Float32Bits(pair.b)},
          {"difference", FiniteOrNull(pair.difference())},
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

Json SideJson(const ComparedSide& side) {
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

Json StageJson(const Difference& stage, const ComparedSide& a, const ComparedSide& b) {
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

}  // namespace

nlohmann::ordered_json ComparisonJson(const RunComparison& c, const ComparedSide& a,
                                      const ComparedSide& b) {
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

}  // namespace millrace
