// One option at a time: each leaves every bit of a run as it was, and each visibly takes effect.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/system/options.h"
#include "tests/system/plan_effects.h"

namespace millrace::test {
namespace {

void CheckOptions(const Base& base) {
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
    CHECK((outcome.plan_hash != reference.plan_hash) == (option.reach != Reach::kRun));
    CHECK((PlacedOps(outcome.plan()) != PlacedOps(reference.plan())) ==
          (option.reach == Reach::kPlan));
    CHECK(option.governs(outcome) != option.governs(reference));
    if (option.trouble && OneBucketPerBlock(outcome.run))
      CHECK(option.trouble(trial, outcome) == "");
  }
}

// A section of each base, which needs a name of its own in its test case: `-c NAME` runs one alone,
// so that several processes share a card.
void CheckBase(const Base& base) {
  DYNAMIC_SECTION(base.name) { CheckOptions(base); }
}

void CheckBases(int world) {
  if (!HaveDevices(world)) return;
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const bool tied : {true, false})
      for (const auto precision :
           {Precision::kFp32, Precision::kBf16, Precision::kBf16Sums, Precision::kBf16All})
        for (const int64_t accumulate : {1, 3}) {
          // Joining NCCL takes a second per trial: GPUs get one base per family and precision.
          if (TestRanks().captures() && world > 1 &&
              (accumulate == 1 || tied != (family == ModelConfig::Family::kGpt2) ||
               precision == Precision::kBf16 || precision == Precision::kBf16Sums))
            continue;
          Base base = MakeBase(family, tied, precision, world, accumulate);
          CheckBase(base);
          if (world == 1 || accumulate == 1) continue;
          base.name += ", reduced every microbatch";
          base.trial.config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
          CheckBase(base);
        }
}

TEST_CASE("one rank: no option changes a bit, and each takes effect", "[world1]") { CheckBases(1); }
TEST_CASE("two ranks: no option changes a bit, and each takes effect", "[world2]") {
  CheckBases(2);
}
TEST_CASE("three ranks: no option changes a bit, and each takes effect", "[world3]") {
  CheckBases(3);
}
TEST_CASE("four ranks: no option changes a bit, and each takes effect", "[world4]") {
  CheckBases(4);
}

TEST_CASE("blocks split over ranks: no option changes a bit, and each takes effect", "[tensor]") {
  struct Mesh {
    int replicate, shard, tensor, strips;
  };
  for (const Mesh& mesh : {Mesh{1, 1, 2, 1}, {1, 1, 3, 2}, {1, 2, 2, 3}, {2, 1, 2, 1}}) {
    const int world = mesh.replicate * mesh.shard * mesh.tensor;
    if (!HaveDevices(world)) continue;
    for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
      for (const auto precision : {Precision::kFp32, Precision::kBf16All}) {
        if (TestRanks().captures() && precision == Precision::kFp32) continue;
        Base base = MakeBase(family, family == ModelConfig::Family::kGpt2, precision, world, 2);
        base.name += fmt::format(", replicate {} shard {}, {} strips", mesh.replicate, mesh.shard,
                                 mesh.strips);
        base.trial.config.parallel.replicate = mesh.replicate;
        MakeTensor(base, mesh.tensor);
        base.trial.config.parallel.tensor_strips = mesh.strips;
        if (mesh.shard > 1) base.trial.config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
        CheckBase(base);
      }
  }
}

TEST_CASE("experts on ranks of their own: no option changes a bit, and each takes effect",
          "[experts]") {
  for (const auto precision : {Precision::kFp32, Precision::kBf16All}) {
    if (TestRanks().captures() && precision == Precision::kFp32) continue;
    for (Base& base : ExpertBases(precision)) {
      Config& config = base.trial.config;
      if (!HaveDevices(base.trial.world)) continue;
      if (config.parallel.Shard(base.trial.world) > 1)
        config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
      CheckBase(base);
    }
  }
}

// Blocks in two flats, of which one is exchanged whole; four blocks are two rounds of two ranks,
// and on three a round and a part of one.
TEST_CASE("by Muon: no option changes a bit, and each takes effect", "[muon]") {
  for (const int world : {1, 2, 3}) {
    if (!HaveDevices(world)) continue;
    for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
      const Precision precision =
          family == ModelConfig::Family::kGpt2 ? Precision::kFp32 : Precision::kBf16All;
      if (TestRanks().captures() && precision == Precision::kFp32) continue;
      Base base = MakeBase(family, family == ModelConfig::Family::kGpt2, precision, world, 2);
      base.trial.config.optimizer.name = OptimizerConfig::Kind::kMuon;
      // More is live in the backward than in the update, which has all matrices at once.
      if (world == 1) base.trial.config.train.micro_batch *= 4;
      if (world == 3) base.trial.config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
      CheckBase(base);
    }
  }
}

// With a scale that falls and grows within the steps.
TEST_CASE("in fp16: no option changes a bit, and each takes effect", "[fp16]") {
  for (const auto& [world, accumulate] : {std::pair{1, 3}, {2, 1}, {2, 3}}) {
    if (!HaveDevices(world)) continue;
    const auto family = accumulate == 1 ? ModelConfig::Family::kLlama : ModelConfig::Family::kGpt2;
    Base base = MakeBase(family, true, accumulate == 1 ? Precision::kFp16 : Precision::kFp16All,
                         world, accumulate);
    base.trial.config.precision.loss_scale = {.init_scale = 1024, .growth_interval = 2};
    CheckBase(base);
  }
}

// f32 parameters of their own beside matrices in bf16; blocks of three kinds and sizes.
TEST_CASE("a hybrid with Mamba-2: no option changes a bit, and each takes effect", "[mamba]") {
  for (const int world : {1, 2}) {
    if (!HaveDevices(world)) continue;
    for (const auto precision : {Precision::kFp32, Precision::kBf16, Precision::kBf16All}) {
      if (TestRanks().captures() && precision != Precision::kBf16All) continue;
      CheckBase(MakeBase(ModelConfig::Family::kNemotronH, false, precision, world, 2));
    }
  }
}

TEST_CASE("sequences split over ranks: no option changes a bit, and each takes effect",
          "[context]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    const Precision precision =
        family == ModelConfig::Family::kGpt2 ? Precision::kFp32 : Precision::kBf16All;
    if (TestRanks().captures() && precision == Precision::kFp32) continue;
    for (Base& base : SplitBases(family, precision)) {
      if (base.trial.config.parallel.context == 1 || !HaveDevices(base.trial.world)) continue;
      if (base.trial.config.parallel.replicate > 1)
        base.trial.config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
      CheckBase(base);
    }
  }
}

TEST_CASE("units of unequal size: no option changes a bit, and each takes effect", "[uneven]") {
  for (const int world : {2, 3}) {
    if (!HaveDevices(world)) continue;
    for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
      for (const auto precision : {Precision::kFp32, Precision::kBf16All}) {
        if (TestRanks().captures() && family == ModelConfig::Family::kGpt2) continue;
        Base base = MakeBase(family, family == ModelConfig::Family::kGpt2, precision, world, 2);
        MakeUneven(base);
        CheckBase(base);
      }
  }
}

// Blocks are the same whichever unit holds them, and each element's gradient is added in
// the order of the ranks. What adds over a whole unit is the norm: its bits follow the
// units, and so would those of a step that is clipped by it. Without clipping all but the
// norm is the same, bit for bit. By Muon, too, on the CPU: whether ranks exchange matrices or have
// them whole, and how many of a shape are multiplied at once, follows the units, and no matrix's
// bits do. On CUDA those of products may depend on how many they are (BatchedMatmulOp).
TEST_CASE("however blocks are grouped, losses, parameters and moments have the same bits",
          "[uneven]") {
  if (!HaveDevices(2)) return;
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const auto& [precision, name] : {std::pair{Precision::kFp32, OptimizerKind::kAdamW},
                                          {Precision::kFp32, OptimizerKind::kMuon},
                                          {Precision::kBf16All, OptimizerKind::kAdamW},
                                          {Precision::kBf16All, OptimizerKind::kMuon}}) {
      if (TestRanks().captures() && name == OptimizerKind::kMuon) continue;
      Base base = MakeBase(family, family == ModelConfig::Family::kGpt2, precision, 2, 3);
      INFO(base.name << (name == OptimizerKind::kMuon ? " by muon" : ""));
      base.trial.config.optimizer.name = name;
      base.trial.config.model.layers = 7;
      base.trial.config.optimizer.clip = 0;
      const Outcome reference = RunTrial(base.trial);
      using Blocks = std::vector<int64_t>;
      for (const IntegerOrList& blocks :
           std::vector<IntegerOrList>{int64_t{2}, int64_t{7}, Blocks{1, 1, 3, 1, 1}, Blocks{4, 3},
                                      Blocks{1, 1, 1, 1, 1, 1, 1}}) {
        Trial trial = base.trial;
        trial.config.sharding.blocks_per_unit = blocks;
        const Outcome outcome = RunTrial(trial);
        RequireCounters(trial, outcome);
        CHECK(outcome.param_hash == reference.param_hash);
        CHECK(outcome.optimizer_hash == reference.optimizer_hash);
        // Seven units of one block are the same plan, written otherwise.
        CHECK((outcome.plan_hash == reference.plan_hash) ==
              (blocks == IntegerOrList(Blocks(7, 1))));
        for (size_t step = 0; step < reference.scalars.size(); ++step) {
          CHECK(outcome.scalars[step].loss == reference.scalars[step].loss);
          CHECK(outcome.scalars[step].grad_norm ==
                Approx(reference.scalars[step].grad_norm).epsilon(1e-6));
        }
      }
    }
}

TEST_CASE("a loss in chunks, whose gradients are added one by one", "[chunks]") {
  if (!HaveDevices(2)) return;
  for (const bool tied : {true, false})
    for (const auto precision : {Precision::kFp32, Precision::kBf16All}) {
      Base base = MakeBase(ModelConfig::Family::kLlama, tied, precision, 2, 2);
      base.name += ", a loss in chunks";
      base.trial.config.model.seq_len =
          260;  // two rows: 520 rows of logits, of which 512 exist at once
      base.trial.steps = 2;
      CheckBase(base);
    }
}

TEST_CASE(
    "reshard auto: more budget, more blocks kept, the same bits, never more bytes than allowed",
    "[auto]") {
  if (!HaveDevices(3)) return;
  for (const int64_t accumulate : {1, 3}) {
    Base base = MakeBase(ModelConfig::Family::kGpt2, true, Precision::kBf16, 3, accumulate);
    const Outcome reference = RunTrial(base.trial);
    Trial never = base.trial;
    never.config.sharding.reshard = ShardingConfig::Reshard::kNever;
    const int64_t low = reference.arena_bytes, high = RunTrial(never).arena_bytes;
    REQUIRE(low < high);
    std::vector<int64_t> kept, allowed, needed;
    for (int64_t part = 0; part <= 8; ++part) {
      Trial trial = base.trial;
      trial.config.sharding.reshard = ShardingConfig::Reshard::kAuto;
      trial.config.memory.budget_gib =
          std::ldexp(static_cast<double>(low + (high - low) * part / 8), -30);
      INFO("budget " << low + (high - low) * part / 8);
      const Outcome outcome = RunTrial(trial);
      REQUIRE(outcome.Bits() == reference.Bits());
      RequireCounters(trial, outcome);
      kept.push_back(KeptBlocks(outcome.plan(), outcome.run.layout));
      allowed.push_back(low + (high - low) * part / 8);
      needed.push_back(outcome.arena_bytes);
    }
    // As many as fit: what any of these plans needs for more blocks is more than was allowed.
    for (size_t budget = 0; budget < kept.size(); ++budget)
      for (size_t other = 0; other < kept.size(); ++other)
        if (kept[other] > kept[budget]) REQUIRE(needed[other] > allowed[budget]);
    REQUIRE(std::is_sorted(kept.begin(), kept.end()));
    REQUIRE(kept.back() == base.trial.config.model.layers);
    REQUIRE(kept.front() < base.trial.config.model.layers);
    Trial too_small = base.trial;
    too_small.config.memory.budget_gib = std::ldexp(static_cast<double>(low - 1), -30);
    REQUIRE_THROWS_WITH(RunTrial(too_small), Catch::Contains("memory.budget_gib"));
  }
}

TEST_CASE(
    "recompute auto: less budget, more computed again, the same bits, never more bytes than "
    "allowed",
    "[auto]") {
  if (!HaveDevices(2)) return;
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    Base base =
        MakeBase(family, true, Precision::kBf16, 2, family == ModelConfig::Family::kGpt2 ? 1 : 3);
    base.trial.config.model.seq_len = 96;  // activations outweigh all else
    const Outcome reference = RunTrial(base.trial);
    const auto with = [&](MemoryConfig::Recompute recompute) {
      Trial trial = base.trial;
      trial.config.memory.recompute = recompute;
      return PlanOf(trial).plans.Of("train").arena_bytes;
    };
    const int64_t high = reference.arena_bytes, norms = with(MemoryConfig::Recompute::kNorms),
                  low = std::min(norms, with(MemoryConfig::Recompute::kBlock));
    REQUIRE(norms < high);
    std::vector<int64_t> again;
    bool partly = false;
    for (int64_t part = 8; part >= 0; --part) {
      Trial trial = base.trial;
      trial.config.memory.recompute = MemoryConfig::Recompute::kAuto;
      trial.config.memory.budget_gib =
          std::ldexp(static_cast<double>(low + (high - low) * part / 8), -30);
      INFO("budget " << low + (high - low) * part / 8);
      const Outcome outcome = RunTrial(trial);
      REQUIRE(outcome.Bits() == reference.Bits());
      RequireCounters(trial, outcome);
      const RecomputeCounts counts = PlanOf(trial).recompute.counts;
      again.push_back(counts.everything);
      for (const auto& [kind, units] : counts.cheap) {
        again.back() += units;
        partly |= units % counts.blocks != 0;
      }
    }
    REQUIRE(again.front() == 0);
    REQUIRE(again.back() > again[1]);
    REQUIRE(partly);
    Trial too_small = base.trial;
    too_small.config.memory.recompute = MemoryConfig::Recompute::kAuto;
    too_small.config.memory.budget_gib = std::ldexp(static_cast<double>(low - 1), -30);
    REQUIRE_THROWS_WITH(RunTrial(too_small),
                        Catch::Contains("even with every block computed again"));
  }
}

}  // namespace
}  // namespace millrace::test
