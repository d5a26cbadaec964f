// DESIGN.md section 12.2, one option at a time: each leaves every bit of a run as it was, and each visibly
// takes effect.
#include <catch2/catch.hpp>

#include "tests/system/options.h"

namespace millrace::test {
namespace {

void CheckBase(const Base& base) {
  INFO(base.name);
  const Outcome reference = RunTrial(base.trial);
  REQUIRE(reference.scalars.back().adam_t == base.trial.steps);
  RequireCounters(base.trial, reference);

  const Outcome again = RunTrial(base.trial);
  REQUIRE(again.Bits() == reference.Bits());
  REQUIRE(again.plan_hash == reference.plan_hash);

  for (const Option& option : BitwiseOptions()) {
    INFO(option.name);
    Trial trial = base.trial;
    option.set(trial);
    if (!Valid(trial)) continue;
    const Outcome outcome = RunTrial(trial);
    CHECK(outcome.Bits() == reference.Bits());
    RequireCounters(trial, outcome);
    if (!option.applies(trial)) continue;
    CHECK((outcome.plan_hash != reference.plan_hash) == option.in_plan);
    CHECK(option.governs(outcome) != option.governs(reference));
  }
}

void CheckBases(int world) {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const bool tied : {true, false})
      for (const auto precision :
           {Precision::kFp32, Precision::kBf16, Precision::kBf16Sums, Precision::kBf16All})
        for (const int64_t accumulate : {1, 3}) {
          Base base = MakeBase(family, tied, precision, world, accumulate);
          CheckBase(base);
          if (world == 1 || accumulate == 1) continue;
          base.name += ", reduced every microbatch";
          base.trial.config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
          CheckBase(base);
        }
}

TEST_CASE("one rank: no option changes a bit, and each takes effect", "[world1]") { CheckBases(1); }
TEST_CASE("two ranks: no option changes a bit, and each takes effect", "[world2]") { CheckBases(2); }
TEST_CASE("three ranks: no option changes a bit, and each takes effect", "[world3]") { CheckBases(3); }
TEST_CASE("four ranks: no option changes a bit, and each takes effect", "[world4]") { CheckBases(4); }

}  // namespace
}  // namespace millrace::test
