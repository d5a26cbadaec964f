// Sequences split over the context axis, beside the same model with whole ones: split_trial.h.
#include <catch2/catch.hpp>

#include "tests/system/axes/split_trial.h"

namespace millrace::test {
namespace {

Trial TrialOf(ModelConfig::Family family, const SplitShape& shape) {
  return SplitTrial(family, shape, 2, 24);
}

TEST_CASE("a model whose sequences are split trains as with whole ones", "[context]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    const Outcome whole = RunTrial(TrialOf(family, {}));
    for (const SplitShape& shape : {SplitShape{1, 1, 2, 1, 1},
                                    {1, 1, 3, 1, 3},
                                    {1, 2, 2, 1, 1},
                                    {2, 1, 2, 1, 2},
                                    {1, 1, 4, 1, 1},
                                    {1, 1, 2, 2, 1},
                                    {2, 2, 2, 1, 1}}) {
      INFO("replicate " << shape.replicate << " shard " << shape.shard << " context "
                        << shape.context << " tensor " << shape.tensor << " accumulate "
                        << shape.accumulate);
      const Trial trial = TrialOf(family, shape);
      const Outcome split = RunTrial(trial);
      RequireClose(split, whole);
      RequireCounters(trial, split);
    }
  }
}

TEST_CASE("evaluation and logits with split sequences are those with whole ones", "[context]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const int64_t row : {0, 5, 11, 12, 23})
      for (const SplitShape& shape : {SplitShape{1, 1, 2, 1, 1}, {1, 1, 3, 1, 1}, {1, 2, 2, 2, 1}})
        CheckEvaluation([&](const SplitShape& s) { return TrialOf(family, s); }, shape, row);
}

TEST_CASE("a checkpoint of a mesh with context loads at any other, and back", "[context]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    const auto trial_of = [&](const SplitShape& shape) { return TrialOf(family, shape); };
    RequireCheckpointsLoad(
        trial_of, trial_of,
        {{}, {1, 1, 2, 1, 1}, {1, 2, 2, 1, 1}, {2, 1, 2, 1, 1}, {1, 1, 2, 2, 1}});
  }
}

TEST_CASE("lengths that twice the context axis does not divide are refused, with those that would",
          "[context]") {
  const auto refusal = [](const std::function<void(Config&)>& change) {
    return RefusalOf(TrialOf(ModelConfig::Family::kLlama, {.context = 2}), change);
  };
  using Catch::Contains;
  CHECK(refusal([](Config&) {}).empty());
  CHECK_THAT(refusal([](Config& c) { c.model.seq_len = 26; }),
             Contains("4 equal chunks") && Contains("26 is no") && Contains("28 would be") &&
                 Contains("so would 24"));
  CHECK_THAT(refusal([](Config& c) { c.model.seq_len = 3; }),
             Contains("4 would be") && !Contains("so would"));
  CHECK_THAT(refusal([](Config& c) { c.parallel.shard = 2; }),
             Contains("shard * replicate * context") && Contains("2 ranks"));
  CHECK_THAT(refusal([](Config& c) { c.parallel.context = 3; }),
             Contains("replicate * context must divide the world"));
}

}  // namespace
}  // namespace millrace::test
