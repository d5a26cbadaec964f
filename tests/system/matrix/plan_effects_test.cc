// The allocators and the depths, by what they do to plans of units of unequal size: whatever rule
// the code of one option followed in place of its own, an address or an edge would be another.
#include "tests/system/plan_effects.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "tests/system/options.h"

namespace millrace::test {
namespace {

using Allocator = MemoryConfig::Allocator;

constexpr std::pair<const char*, Allocator> kAllocators[] = {
    {"packed", Allocator::kPacked},         {"coloured", Allocator::kColoured},
    {"max_pool", Allocator::kMaxPool},      {"fixed", Allocator::kFixed},
    {"persistent", Allocator::kPersistent}, {"dynamic", Allocator::kDynamic}};

// Nine blocks in units of 1, 1, 3, 2, 1 and 1; concat=last, so that gradients have a pool, too.
std::vector<Base> UnevenBases() {
  std::vector<Base> bases;
  for (const int world : {2, 3})
    for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
      for (const auto precision : {Precision::kFp32, Precision::kBf16Sums}) {
        Base base = MakeBase(family, true, precision, world, 2);
        base.trial.config.model.layers = 9;
        base.trial.config.sharding.blocks_per_unit = std::vector<int64_t>{1, 1, 3, 2, 1, 1};
        base.trial.config.sharding.grad_concat = ShardingConfig::GradConcat::kLast;
        bases.push_back(std::move(base));
      }
  return bases;
}

TEST_CASE("each allocator's addresses follow its own rule, and no other's") {
  for (const Base& base : UnevenBases())
    for (const auto& [prefetch, depth] : {std::pair<int64_t, int64_t>{0, 1}, {1, 1}, {2, 2}}) {
      Trial trial = base.trial;
      trial.config.memory.prefetch = prefetch;
      trial.config.memory.reduce_depth = depth;
      for (const auto& [name, allocator] : kAllocators) {
        trial.config.memory.allocator = allocator;
        const AssembledRun run = PlanOf(trial);
        for (const auto& [other, rule] : kAllocators) {
          const std::string trouble =
              AllocatorTrouble(trial.config, rule, run.plans.Of("train"), run.layout);
          INFO(fmt::format("{}, prefetch {}, reduce_depth {}: {} by the rule of {}: {}", base.name,
                           prefetch, depth, name, other, trouble));
          CHECK(trouble.empty() == (rule == allocator));
        }
      }
    }
}

TEST_CASE("on unequal units, all allocators need different bytes, and packed the fewest") {
  for (const Base& base : UnevenBases()) {
    INFO(base.name);
    std::vector<int64_t> arenas;
    for (const auto& [name, allocator] : kAllocators) {
      Trial trial = base.trial;
      trial.config.memory.allocator = allocator;
      arenas.push_back(PlanOf(trial).plans.Of("train").arena_bytes);
      for (size_t other = 0; other + 1 < arenas.size(); ++other)
        CHECK(arenas[other] != arenas.back());
      CHECK(arenas.back() >= arenas.front());
    }
  }
}

TEST_CASE("gathers run ahead of their readers by memory.prefetch") {
  for (const Base& base : UnevenBases())
    for (const int64_t prefetch : {0, 1, 2, 3})
      for (const auto allocator : {Allocator::kPacked, Allocator::kMaxPool, Allocator::kDynamic}) {
        Trial trial = base.trial;
        trial.config.memory.prefetch = prefetch;
        trial.config.memory.allocator = allocator;
        INFO(fmt::format("{}, allocator {}, prefetch {}", base.name, static_cast<int>(allocator),
                         prefetch));
        CHECK(GatherLead(PlanOf(trial).plans.Of("train")) == prefetch + 1);
      }
}

TEST_CASE("max_pool and coloured reuse a bucket memory.reduce_depth reductions later") {
  for (const Base& base : UnevenBases())
    for (const int64_t depth : {1, 2, 3})
      for (const auto allocator : {Allocator::kMaxPool, Allocator::kColoured}) {
        Trial trial = base.trial;
        // Where the wire has a bucket of its own, lifetimes hold that one alone.
        if (allocator == Allocator::kColoured && Narrow(trial)) continue;
        trial.config.memory.reduce_depth = depth;
        trial.config.memory.allocator = allocator;
        INFO(fmt::format("{}, depth {}", base.name, depth));
        const ReductionsBehind behind = BehindReusedBuckets(PlanOf(trial).plans.Of("train"));
        CHECK(behind.issued == depth);
        CHECK(behind.running == depth);
      }
}

TEST_CASE("max_pool's blocks take turns at memory.slots addresses") {
  for (const Base& base : UnevenBases())
    for (const int64_t slots : {2, 3, 4, 5}) {
      Trial trial = base.trial;
      trial.config.memory.slots = slots;
      trial.config.memory.allocator = Allocator::kMaxPool;
      INFO(fmt::format("{}, slots {}", base.name, slots));
      const AssembledRun run = PlanOf(trial);
      CHECK(BlockBucketAddresses(run.plans.Of("train")) == slots);
      CHECK(AllocatorTrouble(trial.config, Allocator::kMaxPool, run.plans.Of("train"),
                             run.layout) == "");
    }
}

}  // namespace
}  // namespace millrace::test
