// The whole product of the options that may not change a bit. Tagged `long`:
// tools/test --full runs it.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <vector>

#include "tests/system/options.h"

namespace millrace::test {
namespace {

using Allocator = MemoryConfig::Allocator;
using Concat = ShardingConfig::GradConcat;
using Downcast = ShardingConfig::Downcast;
using Graph = ExecutionConfig::Graph;
using Recompute = MemoryConfig::Recompute;
using Reshard = ShardingConfig::Reshard;

// Appends to `trials` what each of them becomes by each change.
template <class T>
std::vector<Trial> Times(const std::vector<Trial>& trials, std::initializer_list<T> values,
                         void (*set)(Config&, T)) {
  std::vector<Trial> product;
  for (const Trial& trial : trials)
    for (const T value : values) {
      product.push_back(trial);
      set(product.back().config, value);
    }
  return product;
}

std::vector<Trial> Product(const Trial& base) {
  std::vector<Trial> all = {base};
  all = Times<Allocator>(all,
                         {Allocator::kPacked, Allocator::kColoured, Allocator::kMaxPool,
                          Allocator::kFixed, Allocator::kPersistent, Allocator::kDynamic},
                         [](Config& c, Allocator v) { c.memory.allocator = v; });
  all = Times<int64_t>(all, {0, 1, 2, 3}, [](Config& c, int64_t v) { c.memory.prefetch = v; });
  all = Times<int64_t>(all, {0, 1, 2}, [](Config& c, int64_t v) { c.memory.reduce_depth = v; });
  all = Times<Downcast>(all, {Downcast::kAfterGather, Downcast::kPerGather, Downcast::kAfterUpdate},
                        [](Config& c, Downcast v) { c.sharding.downcast = v; });
  all = Times<Concat>(all, {Concat::kEvery, Concat::kLast, Concat::kDirect},
                      [](Config& c, Concat v) { c.sharding.grad_concat = v; });
  all = Times<Reshard>(all, {Reshard::kNever, Reshard::kAfterBackward, Reshard::kAfterForward},
                       [](Config& c, Reshard v) { c.sharding.reshard = v; });
  all = Times<Recompute>(all, {Recompute::kNone, Recompute::kNorms, Recompute::kBlock},
                         [](Config& c, Recompute v) { c.memory.recompute = v; });
  all = Times<Graph>(all, {Graph::kStep, Graph::kMicrobatch, Graph::kOff},
                     [](Config& c, Graph v) { c.execution.graph = v; });
  // What does not enter the plan goes round.
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % 3 == 1) all[i].sharing = CommSharing::kShared;
    if (i % 5 == 2) all[i].adversary_seed = i;
    if (i % 7 == 3) all[i].config.execution.checked = true;
    if (all[i].config.execution.checked) all[i].adversary_seed.reset();
  }
  return all;
}

void CheckProduct(const Base& base) {
  INFO(base.name);
  const std::string reference = RunTrial(base.trial).Bits();
  int64_t run = 0;
  for (const Trial& trial : Product(base.trial)) {
    if (!Valid(trial)) continue;
    INFO(fmt::format("combination {}", run++));
    const Outcome outcome = RunTrial(trial);
    REQUIRE(outcome.Bits() == reference);
    RequireCounters(trial, outcome);
  }
  REQUIRE(run > 5000);
}

void CheckWorld(int world) {
  Base gpt2 = MakeBase(ModelConfig::Family::kGpt2, true,
                       world % 2 == 0 ? Precision::kBf16 : Precision::kBf16All, world, 2);
  Base llama = MakeBase(ModelConfig::Family::kLlama, false,
                        world % 2 == 0 ? Precision::kBf16All : Precision::kBf16, world, 1);
  gpt2.trial.steps = llama.trial.steps = 2;
  llama.trial.config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
  CheckProduct(gpt2);
  CheckProduct(llama);
}

TEST_CASE("one rank: the whole product of options has the bits of the base", "[world1]") {
  CheckWorld(1);
}
TEST_CASE("two ranks: the whole product of options has the bits of the base", "[world2]") {
  CheckWorld(2);
}
TEST_CASE("three ranks: the whole product of options has the bits of the base", "[world3]") {
  CheckWorld(3);
}
TEST_CASE("four ranks: the whole product of options has the bits of the base", "[world4]") {
  CheckWorld(4);
}

}  // namespace
}  // namespace millrace::test
