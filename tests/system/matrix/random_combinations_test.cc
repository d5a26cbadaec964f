// Many options at once: seeded draws of those that DrawOptions names, each against its own base.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "tests/system/options.h"

namespace millrace::test {
namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  // Uniform in [0, n).
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  template <class T>
  T Of(std::initializer_list<T> values) {
    return *(values.begin() + Below(static_cast<int64_t>(values.size())));
  }

 private:
  std::mt19937_64 random_;
};

// The same number in each unit, or a list of random ones.
IntegerOrList DrawBlocks(Draw& draw, int64_t layers) {
  if (draw.Of({true, false})) return 1 + draw.Below(std::min<int64_t>(layers, 3));
  std::vector<int64_t> blocks;
  for (int64_t left = layers; left > 0; left -= blocks.back())
    blocks.push_back(1 + draw.Below(left));
  return blocks;
}

// What decides the bits.
Trial DrawBase(Draw& draw) {
  using Sync = ShardingConfig::GradSync;
  const auto family = draw.Of({ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama});
  Trial trial;
  Config& config = trial.config = TinyConfig(family);
  config.model.tied = draw.Of({true, false});
  config.model.layers = draw.Of<int64_t>({1, 3, 4, 5});
  config.sharding.blocks_per_unit = DrawBlocks(draw, config.model.layers);
  config.train.micro_batch = draw.Of<int64_t>({1, 2, 3});
  config.train.accumulate = draw.Of<int64_t>({1, 2, 3, 4});
  SetPrecision(config, draw.Of({Precision::kFp32, Precision::kBf16, Precision::kBf16Sums,
                                Precision::kBf16All}));
  trial.world = draw.Of({1, 2, 3, 4});
  if (trial.world == 4) config.parallel.replicate = draw.Of<int64_t>({1, 2, 4});
  if (trial.world < 4 && trial.world > 1)
    config.parallel.replicate = draw.Of<int64_t>({1, trial.world});
  config.sharding.grad_sync = draw.Of({Sync::kEvery, Sync::kLast});
  if (trial.world % 2 == 0 && config.parallel.replicate < trial.world && draw.Below(2) == 0) {
    Base base{"", trial};
    MakeTensor(base, 2);
    trial = base.trial;
    trial.config.parallel.tensor_strips = draw.Of<int64_t>({1, 3});
  }
  const ParallelConfig& parallel = trial.config.parallel;
  if (trial.world / (parallel.replicate * parallel.tensor) % 2 == 0 && draw.Below(2) == 0) {
    trial.config.parallel.context = 2;
    trial.config.model.seq_len = 12;
  }
  if (family == ModelConfig::Family::kLlama && parallel.tensor * parallel.context == 1 &&
      draw.Below(2) == 0) {
    Base base{"", trial};
    const int64_t others = trial.world / parallel.replicate;
    MakeExperts(base, others % 2 == 0 ? draw.Of<int64_t>({1, 2, others}) : 1);
    trial = base.trial;
  }
  // Whose closed forms are stated for blocks without experts.
  if (!trial.config.model.Has('E') && draw.Below(3) == 0)
    trial.config.optimizer.name = OptimizerKind::kMuon;
  return trial;
}

// What may not change them.
void DrawOptions(Draw& draw, Trial& trial) {
  using Allocator = MemoryConfig::Allocator;
  using Concat = ShardingConfig::GradConcat;
  using Downcast = ShardingConfig::Downcast;
  using Graph = ExecutionConfig::Graph;
  using Recompute = MemoryConfig::Recompute;
  using Reshard = ShardingConfig::Reshard;
  Config& config = trial.config;
  config.memory.allocator =
      draw.Of({Allocator::kPacked, Allocator::kColoured, Allocator::kMaxPool, Allocator::kFixed,
               Allocator::kPersistent, Allocator::kDynamic});
  config.memory.prefetch = draw.Below(4);
  if (MemoryConfig::HasSlots(config.memory.allocator) && draw.Below(2) == 0)
    config.memory.slots = config.memory.prefetch + 1 + draw.Below(3);
  config.memory.reduce_depth = 1 + draw.Below(3);
  config.memory.recompute = draw.Of({Recompute::kNone, Recompute::kNorms, Recompute::kBlock});
  config.sharding.downcast = draw.Of(
      {Downcast::kAfterGather, Downcast::kPerGather, Downcast::kInGather, Downcast::kAfterUpdate});
  config.sharding.grad_concat = draw.Of({Concat::kEvery, Concat::kLast, Concat::kDirect});
  config.sharding.reshard =
      draw.Of({Reshard::kNever, Reshard::kAfterBackward, Reshard::kAfterForward});
  config.execution.graph = draw.Of({Graph::kStep, Graph::kMicrobatch, Graph::kOff});
  trial.sharing = draw.Of({CommSharing::kSeparate, CommSharing::kShared});
  config.execution.overlap_weight_gradients = draw.Below(3) == 0;
  config.execution.checked = draw.Below(4) == 0;
  if (!config.execution.checked && draw.Below(3) == 0)
    trial.adversary_seed = static_cast<uint64_t>(draw.Below(1 << 20));
}

std::string Describe(const Trial& trial) {
  const Config& c = trial.config;
  return fmt::format(
      "world {} replicate {} context {} tensor {} strips {} expert {} {}{} tied {} layers {} per "
      "unit {} batch {} accumulate {} compute {} sums {} wire {} sync {} | allocator {} "
      "prefetch {} slots {} reduce_depth {} recompute {} downcast {} concat {} reshard {} graph {} "
      "overlap {} checked {} adversary {}",
      trial.world, c.parallel.replicate, c.parallel.context, c.parallel.tensor,
      c.parallel.tensor_strips, c.parallel.expert, Name(c.model.family),
      c.optimizer.HasMuon() ? " by muon" : "", c.model.Tied(), c.model.layers,
      fmt::join(c.sharding.BlocksOfUnits(c.model.layers), ","), c.train.micro_batch,
      *c.train.accumulate, static_cast<int>(c.precision.compute),
      static_cast<int>(c.precision.grad_accumulate), static_cast<int>(c.precision.grad_wire),
      static_cast<int>(c.sharding.grad_sync), static_cast<int>(c.memory.allocator),
      c.memory.prefetch, c.memory.Slots(), c.memory.reduce_depth,
      static_cast<int>(c.memory.recompute), static_cast<int>(c.sharding.downcast),
      static_cast<int>(c.sharding.grad_concat), static_cast<int>(c.sharding.reshard),
      static_cast<int>(c.execution.graph), c.execution.overlap_weight_gradients.value_or(false),
      c.execution.checked, trial.adversary_seed ? std::to_string(*trial.adversary_seed) : "none");
}

void CheckSame(const Trial& base, const Trial& trial) {
  INFO(Describe(trial));
  const Outcome reference = RunTrial(base);
  const Outcome outcome = RunTrial(trial);
  RequireCounters(base, reference);
  RequireCounters(trial, outcome);
  CHECK(outcome.Bits() == reference.Bits());
}

TEST_CASE(
    "seeded combinations of all options have their base's bits, and the counters of their closed "
    "forms") {
  const int64_t wanted = std::getenv("MILLRACE_TEST_FULL") != nullptr ? 2000 : 40;
  int64_t run = 0;
  for (uint64_t seed = 1; run < wanted; ++seed) {
    INFO("seed " << seed);
    Draw draw(seed);
    const Trial base = DrawBase(draw);
    Trial trial = base;
    DrawOptions(draw, trial);
    if (!Valid(base) || !Valid(trial)) continue;
    // By Muon the update may decide the peak, which no recomputation lowers.
    if (draw.Below(4) == 0 && !base.config.optimizer.HasMuon()) SetTightBudget(trial);
    CheckSame(base, trial);
    ++run;
  }
}

}  // namespace
}  // namespace millrace::test
