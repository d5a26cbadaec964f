// Weights that are gathered in FP8 (precision.gather=linear): the bits of weights that each product
// quantizes behind the gather, for half the bytes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/system/closed_forms.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

using Family = ModelConfig::Family;

void Widen(Config& config) {
  WidenPastBlocks(config);
  config.model.layers = 3;
}

Trial InFp8(Trial trial) {
  trial.config.precision.gather = WeightGather::kLinear;
  return trial;
}

// Both ways of gathering, and with the second each option that goes with it.
void CheckBase(const Base& base, bool options) {
  INFO(base.name);
  const Outcome reference = RunTrial(base.trial);
  REQUIRE(reference.scalars.back().adam_t == base.trial.steps);
  RequireCounters(base.trial, reference);
  const Outcome narrow = RunTrial(InFp8(base.trial));
  REQUIRE(narrow.Bits() == reference.Bits());
  CHECK(narrow.plan_hash != reference.plan_hash);
  RequireCounters(InFp8(base.trial), narrow);
  if (!options) return;
  int tried = 0;
  for (const Option& option : BitwiseOptions()) {
    INFO(option.name);
    Trial trial = InFp8(base.trial);
    option.set(trial);
    if (!Valid(trial)) continue;
    const Outcome outcome = RunTrial(trial);
    CHECK(outcome.Bits() == reference.Bits());
    RequireCounters(trial, outcome);
    ++tried;
    if (!option.applies(trial)) continue;
    CHECK((outcome.plan_hash != narrow.plan_hash) == (option.reach != Reach::kRun));
  }
  CHECK(tried > 20);
}

TEST_CASE("weights gathered in FP8 have the bits of those quantized behind the gather, on meshes",
          "[fp8]") {
  struct Shape {
    int world, replicate, context;
  };
  for (const LinearEncoding linear : kFloat8Encodings)
    for (const Family family : {Family::kGpt2, Family::kLlama, Family::kNemotronH})
      for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kBf16All})
        for (const Shape& s :
             {Shape{1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {4, 1, 1}, {4, 2, 1}, {2, 2, 1}, {4, 1, 2}}) {
          if (s.context > 1 && family == Family::kNemotronH) continue;
          Base base = MakeFloat8Base(family, linear, precision, s.world, 2);
          base.trial.config.parallel.replicate = s.replicate;
          base.trial.config.parallel.context = s.context;
          if (s.context > 1) base.trial.config.model.seq_len = 8;
          CheckBase(base, false);
        }
}

TEST_CASE("so they have with every other option, on one to three ranks", "[fp8]") {
  for (const LinearEncoding linear : kFloat8Encodings)
    for (const Family family : {Family::kGpt2, Family::kLlama})
      for (const int world : {1, 2, 3})
        CheckBase(MakeFloat8Base(family, linear,
                                 world == 2 ? Precision::kFp32 : Precision::kBf16All, world, 3),
                  true);
}

// What is frozen is quantized once, by the prologue; Muon's matrices lie in flats of their own.
TEST_CASE("so they have where groups are frozen or updated otherwise", "[fp8]") {
  for (const LinearEncoding linear : kFloat8Encodings)
    for (const Family family : {Family::kGpt2, Family::kLlama, Family::kNemotronH})
      for (const bool muon : {false, true})
        for (const int world : {1, 3}) {
          if (muon && family == Family::kNemotronH) continue;  // the groups name a Transformer's
          Base base = MakeFloat8Base(family, linear, Precision::kBf16, world, 2);
          SetGroups(base.trial.config, muon);
          INFO(base.name << (muon ? ", muon" : ""));
          REQUIRE(Valid(InFp8(base.trial)));
          CHECK(RunTrial(InFp8(base.trial)).Bits() == RunTrial(base.trial).Bits());
        }
  for (const int world : {1, 3}) {
    Base base =
        MakeFloat8Base(Family::kLlama, LinearEncoding::kFp8Block, Precision::kBf16, world, 2);
    base.trial.config.optimizer.name = OptimizerKind::kMuon;
    CheckBase(base, false);
  }
}

// Evaluation reads nothing of the blocks that predict further.
TEST_CASE("so they have where blocks predict further tokens", "[fp8]") {
  for (const LinearEncoding linear : kFloat8Encodings)
    for (const int world : {1, 2}) {
      Base base = MakeFloat8Base(Family::kNemotronH, linear, Precision::kBf16, world, 2);
      base.trial.config.model.mtp.depth = 1;
      base.trial.config.model.mtp.pattern = "*-";
      base.trial.all_plans = true;
      REQUIRE(Valid(InFp8(base.trial)));
      CHECK(RunTrial(InFp8(base.trial)).Bits() == RunTrial(base.trial).Bits());
    }
}

// Each unit of several blocks is one flat.
TEST_CASE("so they have where units have several blocks, with every option", "[fp8]") {
  Base base = MakeFloat8Base(Family::kGpt2, LinearEncoding::kFp8Block, Precision::kBf16, 2, 2);
  MakeUneven(base);
  CheckBase(base, true);
}

// Blocks and parameters are cut by the borders of shards.
TEST_CASE("so they have where matrices are larger than a block", "[fp8]") {
  for (const LinearEncoding linear : kFloat8Encodings)
    for (const Family family : {Family::kGpt2, Family::kLlama})
      for (const int world : {1, 2, 3, 4}) {
        Base base = MakeFloat8Base(family, linear, Precision::kBf16, world, 2);
        Widen(base.trial.config);
        base.trial.steps = 2;
        CheckBase(base, false);
      }
}

}  // namespace
}  // namespace millrace::test
