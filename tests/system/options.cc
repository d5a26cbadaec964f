#include "tests/system/options.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <variant>

#include "runtime/config/validate.h"
#include "tests/system/closed_forms.h"
#include "tests/system/plan_effects.h"

namespace millrace::test {
namespace {

using Allocator = MemoryConfig::Allocator;
using Recompute = MemoryConfig::Recompute;
using Graph = ExecutionConfig::Graph;
using Downcast = ShardingConfig::Downcast;
using Concat = ShardingConfig::GradConcat;
using Reshard = ShardingConfig::Reshard;

bool Always(const Trial&) { return true; }
// Tensor and expert shard what they do not split: of each block something.
bool Sharded(const Trial& trial) {
  return ShardAxis(trial) > 1 || trial.config.parallel.OtherAxes() > 1;
}
// Are there parameter buckets at all? One rank reads f32 masters, or the bf16 shard that the update
// writes, where they are.
bool Bucketed(const Trial& trial) {
  return Sharded(trial) ||
         (Narrow(trial) && trial.config.sharding.downcast != Downcast::kAfterUpdate);
}

int64_t Communicators(const Outcome& o) { return o.shard_communicators; }
int64_t Launches(const Outcome& o) { return o.counters[0].graph_launches; }
int64_t PoisonedWords(const Outcome& o) { return o.poisoned_words; }
// Without those of exchanges, of which a plan keeps what it has room for.
int64_t Gathers(const Outcome& o) {
  int64_t exchanged = 0;
  for (const Entry& entry : o.plan().schedule)
    for (const PlanOp& op : o.plan().bodies[static_cast<size_t>(entry.body)].ops)
      exchanged +=
          op.stream == StreamId::kExchange && std::holds_alternative<AllGatherOp<View>>(op.op);
  return o.counters[0].comm.all_gathers - exchanged * std::ssize(o.scalars);
}
int64_t CastBytes(const Outcome& o) { return o.counters[0].kernels.cast_bytes; }
int64_t ConcatenatedBytes(const Outcome& o) { return o.counters[0].kernels.concatenated_bytes; }
int64_t GradPoolBytes(const Outcome& o) { return o.plan().grad_pool_bytes; }
int64_t ParamPoolBytes(const Outcome& o) { return o.plan().param_pool_bytes; }
int64_t ActivationBytes(const Outcome& o) {
  return o.plan().peak_by_class[static_cast<size_t>(BufferClass::kActivations)];
}

int64_t OpsOnReduceStream(const Outcome& o) {
  int64_t ops = 0;
  for (const Body& body : o.plan().bodies)
    for (const PlanOp& op : body.ops) ops += op.stream == StreamId::kReduce;
  return ops;
}

Option GraphOption(const char* name, Graph graph) {
  return {fmt::format("graph={}", name), [=](Trial& t) { t.config.execution.graph = graph; },
          Always, Launches, Reach::kTitle};
}
Option AllocatorOption(const char* name, Allocator allocator) {
  return {fmt::format("allocator={}", name),
          [=](Trial& t) { t.config.memory.allocator = allocator; },
          Bucketed,
          ParamPoolBytes,
          Reach::kPlan,
          [=](const Trial& t, const Outcome& o) {
            return AllocatorTrouble(t.config, allocator, o.plan(), o.run.layout);
          }};
}
std::string Expect(const char* what, int64_t found, int64_t wanted) {
  return found == wanted ? "" : fmt::format("{}: {}, not {}", what, found, wanted);
}
Option PrefetchOption(int64_t prefetch) {
  return {fmt::format("prefetch={}", prefetch),
          [=](Trial& t) { t.config.memory.prefetch = prefetch; },
          Sharded,
          [](const Outcome& o) { return GatherLead(o.plan()); },
          Reach::kPlan,
          [=](const Trial&, const Outcome& o) {
            return Expect("gathers ahead of their readers", GatherLead(o.plan()), prefetch + 1);
          }};
}
Option SlotsOption(int64_t slots) {
  return {fmt::format("slots={}", slots),
          [=](Trial& t) {
            t.config.memory.allocator = Allocator::kMaxPool;
            t.config.memory.slots = slots;
          },
          Sharded,
          Gathers,
          Reach::kPlan,
          [=](const Trial& t, const Outcome& o) {
            const std::string places =
                Expect("addresses of blocks", BlockBucketAddresses(o.plan()), slots);
            return places.empty()
                       ? AllocatorTrouble(t.config, Allocator::kMaxPool, o.plan(), o.run.layout)
                       : places;
          }};
}
Option ReduceDepthOption(int64_t depth) {
  // A pool of slots for the transient buckets of concat=last: depth + 1 copies. Products on the
  // reduce stream, as GPUs have them, would end behind the reductions that were issued before.
  return {fmt::format("reduce_depth={}", depth),
          [=](Trial& t) {
            t.config.memory.allocator = Allocator::kMaxPool;
            t.config.sharding.grad_concat = Concat::kLast;
            t.config.memory.reduce_depth = depth;
            t.config.execution.overlap_weight_gradients = false;
          },
          Sharded,
          GradPoolBytes,
          Reach::kPlan,
          [=](const Trial&, const Outcome& o) {
            const ReductionsBehind behind = BehindReusedBuckets(o.plan());
            const std::string issued =
                Expect("reductions issued before a bucket is reused", behind.issued, depth);
            return issued.empty() ? Expect("of these, running beside", behind.running, depth)
                                  : issued;
          }};
}
Option DowncastOption(const char* name, Downcast downcast) {
  return {fmt::format("downcast={}", name),
          [=](Trial& t) { t.config.sharding.downcast = downcast; }, Narrow, CastBytes};
}
Option ConcatOption(const char* name, Concat concat) {
  return {fmt::format("grad_concat={}", name),
          [=](Trial& t) { t.config.sharding.grad_concat = concat; }, Always, ConcatenatedBytes};
}
Option ReshardOption(const char* name, Reshard reshard) {
  return {fmt::format("reshard={}", name), [=](Trial& t) { t.config.sharding.reshard = reshard; },
          Sharded, Gathers};
}
Option RecomputeOption(const char* name, Recompute recompute) {
  return {fmt::format("recompute={}", name),
          [=](Trial& t) { t.config.memory.recompute = recompute; }, Always, ActivationBytes};
}
// The bytes of a plan that keeps everything allow every block to stay.
void SetWholeBudget(Trial& trial) {
  Config never = trial.config;
  never.sharding.reshard = Reshard::kNever;
  const AssembledRun run = Assemble(never, trial.world, TestRanks().Traits(trial.world), {"train"});
  trial.config.sharding.reshard = Reshard::kAuto;
  trial.config.memory.budget_gib = static_cast<double>(run.plans.Of("train").arena_bytes) /
                                   static_cast<double>(int64_t{1} << 30);
}
Option AdversaryOption(uint64_t seed) {
  return {fmt::format("adversary={}", seed), [=](Trial& t) { t.adversary_seed = seed; }, Always,
          Launches, Reach::kRun};
}

}  // namespace

void SetTightBudget(Trial& trial) {
  int64_t sum = 0;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kNorms}) {
    trial.config.memory.recompute = recompute;
    sum += Assemble(trial.config, trial.world, TestRanks().Traits(trial.world), {"train"})
               .plans.Of("train")
               .arena_bytes;
  }
  trial.config.memory.recompute = Recompute::kAuto;
  trial.config.memory.budget_gib = std::ldexp(static_cast<double>(sum / 2), -30);
}

int64_t ShardAxis(const Trial& trial) { return trial.config.parallel.Shard(trial.world); }
bool Narrow(const Trial& trial) {
  return trial.config.precision.compute != PrecisionConfig::Format::kFp32;
}

std::vector<Option> BitwiseOptions() {
  std::vector<Option> options = {
      GraphOption("microbatch", Graph::kMicrobatch),
      GraphOption("off", Graph::kOff),
      AllocatorOption("coloured", Allocator::kColoured),
      AllocatorOption("max_pool", Allocator::kMaxPool),
      AllocatorOption("fixed", Allocator::kFixed),
      AllocatorOption("persistent", Allocator::kPersistent),
      AllocatorOption("dynamic", Allocator::kDynamic),
      PrefetchOption(0),
      PrefetchOption(2),
      PrefetchOption(3),
      SlotsOption(3),
      ReduceDepthOption(1),
      ReduceDepthOption(2),
      DowncastOption("per_gather", Downcast::kPerGather),
      DowncastOption("after_gather", Downcast::kAfterGather),
      ConcatOption("every", Concat::kEvery),
      ConcatOption("last", Concat::kLast),
      ReshardOption("never", Reshard::kNever),
      ReshardOption("after_backward", Reshard::kAfterBackward),
      {"reshard=auto", SetWholeBudget, Sharded, Gathers},
      RecomputeOption("norms", Recompute::kNorms),
      RecomputeOption("block", Recompute::kBlock),
      {"recompute=auto", SetTightBudget, Always, ActivationBytes},
      {"overlap_weight_gradients",
       [](Trial& t) { t.config.execution.overlap_weight_gradients = !TestRanks().captures(); },
       Always, OpsOnReduceStream},
      {"checked",
       [](Trial& t) {
         t.config.execution.checked = true;
         if (TestRanks().captures()) t.config.execution.graph = Graph::kOff;
       },
       Always, PoisonedWords, Reach::kTitle},
      // Communicators are those that plans ask for: without a group of shards there is none.
      {"communicators=shared", [](Trial& t) { t.sharing = CommSharing::kShared; }, Sharded,
       Communicators, Reach::kRun},
  };
  if (TestRanks().RoundsInGathers())
    options.push_back(DowncastOption("in_gather", Downcast::kInGather));
  // It chooses the order in which ops run on the host; a device has an order of its own.
  if (!TestRanks().captures())
    for (const uint64_t seed : {1, 2, 3}) options.push_back(AdversaryOption(seed));
  return options;
}

bool OneBucketPerBlock(const AssembledRun& run) {
  if (!EqualBlockOf(run.spec)) return false;
  const ShardLayout& layout = run.layout;
  std::vector<int> buckets(layout.units.size());
  for (size_t f = 0; f < layout.flats.size(); ++f) {
    const FlatParam& flat = layout.flats[f];
    const bool gathered = layout.mesh.Size(flat.shard) > 1;
    if (gathered && layout.IsBlock(FlatId{static_cast<int32_t>(f)}) &&
        ++buckets[static_cast<size_t>(flat.key.unit.value)] > 1)
      return false;
  }
  return true;
}

std::string Name(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return "fp32";
    case Precision::kBf16:
      return "bf16";
    case Precision::kBf16Sums:
      return "bf16, bf16 sums";
    case Precision::kBf16All:
      return "bf16 throughout";
    case Precision::kFp16:
      return "fp16";
    case Precision::kFp16All:
      return "fp16 throughout";
  }
  return "?";
}

void SetPrecision(Config& config, Precision precision) {
  using Format = PrecisionConfig::Format;
  if (precision == Precision::kFp32) return;
  if (precision == Precision::kFp16 || precision == Precision::kFp16All) {
    config.precision.compute = Format::kFp16;
    if (precision == Precision::kFp16) return;
    config.precision.grad_accumulate = config.precision.grad_wire = Format::kFp16;
    config.precision.norms = PrecisionConfig::Norms::kCompute;
    return;
  }
  config.precision.compute = Format::kBf16;
  if (precision == Precision::kBf16) return;
  config.precision.grad_accumulate = Format::kBf16;
  if (precision == Precision::kBf16Sums) return;
  config.precision.grad_wire = Format::kBf16;
  config.precision.norms = PrecisionConfig::Norms::kCompute;
}

bool Valid(const Trial& trial) { return Validate(trial.config, {.world = trial.world}).empty(); }

void RequireCounters(const Trial& trial, const Outcome& outcome) {
  const int64_t kept = KeptBlocks(outcome.plan(), outcome.run.layout);
  const KeptForm exchanges = KeptExchangesOf(trial, outcome.run);
  for (size_t rank = 0; rank < outcome.counters.size(); ++rank) {
    const StepCounters step = ExpectedPerStep(trial, kept, static_cast<int64_t>(rank), exchanges);
    StepCounters expected = step * trial.steps;
    if (TestRanks().captures())
      expected.graph_launches -= step.graph_launches;  // the first step is issued
    INFO("rank " << rank << "\ncounted  " << ToString(outcome.counters[rank]) << "\nexpected "
                 << ToString(expected));
    REQUIRE(outcome.counters[rank] == expected);
  }
  REQUIRE(outcome.arena_bytes == outcome.plan().arena_bytes);
  if (trial.config.memory.budget_gib)
    REQUIRE(static_cast<double>(outcome.arena_bytes) <=
            *trial.config.memory.budget_gib * static_cast<double>(int64_t{1} << 30));
}

Base MakeBase(ModelConfig::Family family, bool tied, Precision precision, int world,
              int64_t accumulate) {
  Base base;
  base.trial.world = world;
  Config& config = base.trial.config = TinyConfig(family);
  config.model.tied = tied;
  config.train.accumulate = accumulate;
  SetPrecision(config, precision);
  base.name = fmt::format("{} {} {} world {} accumulate {}", Name(family), tied ? "tied" : "untied",
                          Name(precision), world, accumulate);
  return base;
}

Base MakeFloat8Base(ModelConfig::Family family, LinearEncoding linear, Precision precision,
                    int world, int64_t accumulate) {
  Base base = MakeBase(family, family == ModelConfig::Family::kGpt2, precision, world, accumulate);
  base.trial.config.precision.linear = linear;
  base.name += fmt::format(", {}", Name(linear));
  return base;
}

void WidenPastBlocks(Config& config) {
  config.model.d_model = 132;
  config.model.heads = 3;
  config.model.head_dim = 44;
  config.model.kv_heads = config.model.family == ModelConfig::Family::kGpt2 ? 3 : 1;
  config.model.ffn = 140;
}

void MakeTensor(Base& base, int64_t tensor) {
  base.name += fmt::format(", tensor {}", tensor);
  Config& config = base.trial.config;
  config.parallel.tensor = tensor;
  config.model.heads = 6;
  config.model.seq_len = 6;
  config.model.ffn = 30;
  if (config.model.family == ModelConfig::Family::kGpt2)
    config.model.d_model = 18;
  else
    config.model.kv_heads = tensor;
  config.model.mamba.groups = tensor;
}

void SetGroups(Config& config, bool muon) {
  const bool gpt2 = config.model.family == ModelConfig::Family::kGpt2;
  const std::string norm = gpt2 ? "ln" : "norm", mlp = config.model.Has('E') ? "moe" : "mlp";
  const bool hybrid = config.model.family == ModelConfig::Family::kNemotronH;
  OptimizerGroups groups = {
      {.parameters = {"h.0.*", hybrid ? "h.1.attn.*" : "h.2.attn.*", norm + "_f.*"},
       .frozen = true},
      {.parameters = {hybrid ? "h.2." + mlp + ".*" : "h.1." + mlp + ".*"},
       .lr = 0.5 * config.optimizer.lr,
       .weight_decay = 0.2,
       .betas = {{0.8, 0.9}},
       .eps = 1e-5},
      {.parameters = {"*." + norm + (hybrid ? "_1.weight" : "_2.weight")},
       .lr_mult = 2,
       .weight_decay = 0.3}};
  if (muon)
    groups.push_back({.parameters = {"h.3." + mlp + ".*.weight"},
                      .name = OptimizerKind::kMuon,
                      .lr_mult = 0.5,
                      .weight_decay = 0.05});
  config.optimizer.groups = groups;
}

void MakeExperts(Base& base, int64_t expert) {
  base.name += fmt::format(", experts on {} ranks", expert);
  Config& config = base.trial.config;
  config.model.family = ModelConfig::Family::kQwen3Moe;
  config.model.ffn.reset();
  config.model.moe = {.experts = 8, .top_k = 3, .ffn = 13};
  config.parallel.expert = expert;
}

std::vector<Base> ExpertBases(Precision precision) {
  struct Shape {
    int replicate, shard, expert;
  };
  std::vector<Base> bases;
  for (const Shape& s : {Shape{1, 2, 1}, {1, 1, 2}, {1, 2, 2}, {2, 1, 2}, {1, 1, 4}}) {
    Base base = MakeBase(ModelConfig::Family::kLlama, false, precision,
                         s.replicate * s.shard * s.expert, 2);
    base.name += fmt::format(", replicate {} shard {}", s.replicate, s.shard);
    base.trial.config.parallel.replicate = s.replicate;
    MakeExperts(base, s.expert);
    bases.push_back(std::move(base));
  }
  return bases;
}

std::vector<Base> SplitBases(ModelConfig::Family family, Precision precision) {
  struct Shape {
    int replicate, shard, context, tensor;
  };
  std::vector<Base> bases;
  for (const Shape& s : {Shape{1, 1, 1, 2},
                         {1, 1, 1, 3},
                         {1, 1, 2, 1},
                         {1, 2, 1, 2},
                         {1, 2, 2, 1},
                         {2, 1, 2, 1},
                         {1, 1, 2, 2}}) {
    Base base = MakeBase(family, family == ModelConfig::Family::kGpt2, precision,
                         s.replicate * s.shard * s.context * s.tensor, 2);
    base.name += fmt::format(", replicate {} shard {} context {}", s.replicate, s.shard, s.context);
    MakeTensor(base, s.tensor);
    base.trial.config.model.seq_len = 12;
    base.trial.config.parallel.context = s.context;
    base.trial.config.parallel.replicate = s.replicate;
    bases.push_back(std::move(base));
  }
  return bases;
}

void MakeUneven(Base& base) {
  base.name += ", units of 1, 1, 3, 1 and 1 blocks";
  base.trial.config.model.layers = 7;
  base.trial.config.sharding.blocks_per_unit = std::vector<int64_t>{1, 1, 3, 1, 1};
}

}  // namespace millrace::test
