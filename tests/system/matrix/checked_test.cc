// execution.checked on whichever device the ranks have: whatever execution.graph says, the plan is
// walked op by op, a step stops at the op that makes a value which is not finite, and nothing else
// is different.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "runtime/base/error.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

using Catch::Matchers::Contains;
using Graph = ExecutionConfig::Graph;

Trial Checked(Graph graph) {
  Trial trial = MakeBase(ModelConfig::Family::kGpt2, true, Precision::kBf16All, 1, 2).trial;
  trial.config.execution.graph = graph;
  trial.config.execution.checked = true;
  return trial;
}

// Products of queries and keys overflow; the weights themselves are finite.
void BlowUp(Engine& engine) {
  for (size_t f = 0; f < engine.layout().flats.size(); ++f) {
    if (engine.layout().flats[f].name != "h.0") continue;
    const FlatId flat{static_cast<int32_t>(f)};
    std::vector<float> shard = engine.ReadShard("master", flat);
    for (float& value : shard) value *= 1e37f;
    engine.WriteShard("master", flat, shard);
  }
}

TEST_CASE("checked stops at the first op that makes a value which is not finite, with every graph",
          "[checked]") {
  for (const Graph graph : {Graph::kStep, Graph::kMicrobatch, Graph::kOff}) {
    CAPTURE(static_cast<int>(graph));
    const Trial trial = Checked(graph);
    std::string said;
    ErrorCode code = ErrorCode::kInternal;
    RunEngines(trial, [&](RankContext& rank) {
      rank.engine.InitWeights(3);
      // Beyond the steps that would be issued and captured.
      for (int64_t step = 0; step < 3; ++step) StepOn(rank, trial.config, step);
      BlowUp(rank.engine);
      try {
        StepOn(rank, trial.config, 3);
      } catch (const Error& error) {
        code = error.code();
        said = error.what();
      }
    });
    CHECK(code == ErrorCode::kNonFinite);
    CHECK_THAT(said, Contains("from finite operands, ") && Contains("h.0/"));
  }
}

TEST_CASE("checked stops a split model there, too, on the rank that computes it", "[checked]") {
  for (Base base : SplitBases(ModelConfig::Family::kGpt2, Precision::kFp32)) {
    if (!HaveDevices(base.trial.world)) continue;
    INFO(base.name);
    Trial& trial = base.trial;
    trial.config.execution.checked = true;
    std::vector<std::string> said(static_cast<size_t>(trial.world));
    const auto train = [&] {
      RunEngines(trial, [&](RankContext& rank) {
        rank.engine.InitWeights(3);
        for (int64_t step = 0; step < 2; ++step) StepOn(rank, trial.config, step);
        BlowUp(rank.engine);
        try {
          StepOn(rank, trial.config, 2);
        } catch (const Error& error) {
          if (error.code() == ErrorCode::kNonFinite)
            said[static_cast<size_t>(rank.rank)] = error.what();
          throw;
        }
      });
    };
    CHECK_THROWS_WITH(train(), Contains("from finite operands, "));
    CHECK(std::any_of(said.begin(), said.end(), [](const std::string& text) {
      return text.find("from finite operands, ") != text.npos && text.find("h.0/") != text.npos;
    }));
  }
}

TEST_CASE("checked has the bits of what is not checked, and launches nothing", "[checked]") {
  Trial plain = Checked(Graph::kStep);
  plain.config.execution.checked = false;
  plain.steps = 4;
  const std::string reference = RunTrial(plain).Bits();
  for (const Graph graph : {Graph::kStep, Graph::kMicrobatch, Graph::kOff}) {
    Trial trial = Checked(graph);
    trial.steps = plain.steps;
    const Outcome outcome = RunTrial(trial);
    CHECK(outcome.Bits() == reference);
    CHECK(outcome.counters[0].graph_launches == 0);
  }
}

}  // namespace
}  // namespace millrace::test
