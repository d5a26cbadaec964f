// The adversary on ranks as threads: every rank runs its ops in the same unusual order, so that
// collectives meet in places of the schedule where an ordinary run has none, and what a rank writes
// while a peer reads it shows. Runs under the thread sanitizer.
#include <catch2/catch.hpp>

#include "tests/system/options.h"

namespace millrace::test {
namespace {

Trial Small(ModelConfig::Family family, int world) {
  Trial trial =
      MakeBase(family, family == ModelConfig::Family::kGpt2, Precision::kBf16All, world, 2).trial;
  trial.config.model.layers = 2;
  trial.config.memory.prefetch = 2;
  trial.config.memory.reduce_depth = 2;
  trial.steps = 2;
  return trial;
}

TEST_CASE("ranks as threads in an adversary's order have the bits of the planned order") {
  const auto family = GENERATE(ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama);
  const int world = GENERATE(2, 3, 4);
  Trial trial = Small(family, world);
  // One group; two replicas with an outer reduction.
  for (const int64_t replicate : {1, 2}) {
    if (world % replicate != 0) continue;
    CAPTURE(family, world, replicate);
    trial.config.parallel.replicate = replicate;
    const Outcome planned = RunTrial(trial);
    for (const CommSharing sharing : {CommSharing::kSeparate, CommSharing::kShared})
      for (const uint64_t seed : {1, 2, 3}) {
        Trial shuffled = trial;
        shuffled.sharing = sharing;
        shuffled.adversary_seed = seed;
        const Outcome outcome = RunTrial(shuffled);
        REQUIRE(outcome.Bits() == planned.Bits());
        REQUIRE(outcome.counters.front().comm == planned.counters.front().comm);
        REQUIRE(outcome.counters.front().graph_launches == 0);  // the adversary was at work
      }
  }
}

TEST_CASE("so have ranks that exchange rows and keys") {
  std::vector<Base> bases = SplitBases(ModelConfig::Family::kLlama, Precision::kBf16All);
  for (Base& base : ExpertBases(Precision::kBf16All)) bases.push_back(std::move(base));
  for (const Base& base : bases) {
    INFO(base.name);
    const Outcome planned = RunTrial(base.trial);
    for (const uint64_t seed : {1, 2, 3, 4}) {
      Trial shuffled = base.trial;
      shuffled.sharing = seed % 2 == 0 ? CommSharing::kShared : CommSharing::kSeparate;
      shuffled.adversary_seed = seed;
      const Outcome outcome = RunTrial(shuffled);
      REQUIRE(outcome.Bits() == planned.Bits());
      REQUIRE(outcome.counters.front().comm == planned.counters.front().comm);
      REQUIRE(outcome.counters.front().graph_launches == 0);
    }
  }
}

}  // namespace
}  // namespace millrace::test
