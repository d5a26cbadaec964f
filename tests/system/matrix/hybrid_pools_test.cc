// Stacks whose blocks differ, each with several flat parameters of sizes of their own: the six
// allocators, prefetch and reshard in plans that run, and who takes no slot of theirs.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "tests/system/options.h"
#include "tests/system/plan_effects.h"

namespace millrace::test {
namespace {

using Allocator = MemoryConfig::Allocator;

constexpr Allocator kAllocators[] = {Allocator::kPacked,     Allocator::kColoured,
                                     Allocator::kMaxPool,    Allocator::kFixed,
                                     Allocator::kPersistent, Allocator::kDynamic};

// Mamba-2, experts, attention and MLP on shard 2 x tensor 2: what tensor splits and what it does
// not are two flats of a unit. The embedding is the head's too, and a block that predicts one
// token further reads both.
Trial Hybrid(Precision precision) {
  Trial trial;
  trial.world = 4;
  Config& c = trial.config = TinyConfig(ModelConfig::Family::kNemotronH);
  SetPrecision(c, precision);
  c.parallel.tensor = 2;
  c.model.pattern = "ME*-MEM";
  c.model.tied = true;
  c.model.seq_len = 6;
  c.model.ffn = 30;
  c.model.moe = {.experts = 5, .top_k = 2, .ffn = 7, .bias = false, .shared_ffn = 6};
  c.model.mtp = {.depth = 1, .pattern = "*E"};
  c.train.accumulate = 2;
  c.sharding.grad_concat = ShardingConfig::GradConcat::kLast;  // gradients have a pool, too
  return trial;
}

bool Noted(const StepPlan& plan, const std::string& text) {
  return std::any_of(plan.notes.begin(), plan.notes.end(),
                     [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

// Buckets that live twice, in forward and backward, can make colours largest first need one address
// more than buckets live at once.
bool NeedsOneMore(const std::string& trouble) {
  int addresses = 0, buckets = 0;
  return std::sscanf(trouble.c_str(), "%*[^:]: %d addresses for %d buckets at once", &addresses,
                     &buckets) == 2 &&
         addresses == buckets + 1;
}

TEST_CASE("hybrids of several flats to a block: each allocator follows its own rule",
          "[system][hybrid]") {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16Sums})
    for (const int64_t prefetch : {0, 1, 2})
      for (const Allocator allocator : kAllocators) {
        Trial trial = Hybrid(precision);
        trial.config.memory.prefetch = prefetch;
        trial.config.memory.allocator = allocator;
        const AssembledRun run = PlanOf(trial);
        const StepPlan& plan = run.plans.Of("train");
        for (const Allocator rule : kAllocators) {
          const std::string trouble = AllocatorTrouble(trial.config, rule, plan, run.layout);
          INFO(fmt::format("{}, prefetch {}: {} by the rule of {}: {}", Name(precision), prefetch,
                           Name(allocator), Name(rule), trouble));
          if (rule != allocator)
            CHECK(!trouble.empty());
          else if (rule != Allocator::kColoured || !NeedsOneMore(trouble))
            CHECK(trouble.empty());
        }
        // The second largest buckets of units take turns, too, of weights and of gradients.
        const char* dtype = precision == Precision::kFp32 ? "f32" : "bf16";
        const std::string second = fmt::format("max_pool {}[1]", dtype);
        CHECK(Noted(plan, second) == (allocator == Allocator::kMaxPool));
      }
}

TEST_CASE("hybrids: pools, prefetch and reshard change no bit, and what was planned is allocated",
          "[system][hybrid]") {
  const Precision precision = GENERATE(Precision::kFp32, Precision::kBf16All);
  const Trial base = Hybrid(precision);
  const Outcome reference = RunTrial(base);
  std::set<std::string> hashes = {reference.plan_hash};
  const auto compare = [&](const Trial& trial, const std::string& what) {
    INFO(Name(precision) << ", " << what);
    const Outcome outcome = RunTrial(trial);
    CHECK(outcome.Bits() == reference.Bits());
    CHECK(outcome.arena_bytes == outcome.plan().arena_bytes);
    CHECK(hashes.insert(outcome.plan_hash).second);  // it is another plan
  };
  for (const Allocator allocator : kAllocators) {
    if (allocator == base.config.memory.allocator) continue;
    Trial trial = base;
    trial.config.memory.allocator = allocator;
    compare(trial, std::string(Name(allocator)));
  }
  for (const Allocator allocator : {Allocator::kPacked, Allocator::kMaxPool})
    for (const int64_t prefetch : {0, 3}) {
      Trial trial = base;
      trial.config.memory.allocator = allocator;
      trial.config.memory.prefetch = prefetch;
      compare(trial, fmt::format("{}, prefetch {}", Name(allocator), prefetch));
    }
  for (const Reshard reshard : {Reshard::kNever, Reshard::kAfterBackward}) {
    Trial trial = base;
    trial.config.sharding.reshard = reshard;
    compare(trial, "reshard " + std::string(Name(reshard)));
  }
}

// The embedding is read by the trunk, by each head and by the block behind the trunk.
TEST_CASE("what a further token shares with the trunk lies apart from the blocks' slots",
          "[system][hybrid]") {
  for (const Allocator allocator : {Allocator::kMaxPool, Allocator::kColoured, Allocator::kFixed})
    for (const int64_t slots : {2, 3}) {
      Trial trial = Hybrid(Precision::kBf16);
      trial.config.memory.allocator = allocator;
      trial.config.memory.slots = slots;
      const AssembledRun run = PlanOf(trial);
      const StepPlan& plan = run.plans.Of("train");
      INFO(Name(allocator) << ", slots " << slots);
      std::vector<const PlanBuffer*> buckets[2];  // of units that are no blocks, and of blocks
      for (const PlanBuffer& buffer : plan.buffers)
        for (size_t f = 0; f < run.layout.flats.size(); ++f) {
          const std::string name = "bucket/" + run.layout.flats[f].name;
          if (buffer.name == name || buffer.name.starts_with(name + "#"))
            buckets[run.layout.IsBlock(FlatId{static_cast<int32_t>(f)})].push_back(&buffer);
        }
      for (const PlanBuffer* a : buckets[0])
        for (const PlanBuffer* b : buckets[1]) {
          INFO(a->name << " and " << b->name);
          const int64_t at = a->offsets.front(), other = b->offsets.front();
          CHECK((at + a->bytes <= other || other + b->bytes <= at));
        }
      CHECK(buckets[0].size() >= 2);  // embedding and head, norms
      CHECK(buckets[1].size() > 11);  // a flat of each of eight units, two of those with experts
    }
}

}  // namespace
}  // namespace millrace::test
