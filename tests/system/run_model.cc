#include "tests/system/run_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>

#include "runtime/base/error.h"
#include "runtime/exec/agreement/plan_comms.h"
#include "runtime/exec/arena/arena_view.h"
#include "runtime/exec/bound_op.h"
#include "runtime/exec/logical_tensors.h"

namespace millrace::test {

Config TinyConfig(ModelConfig::Family family) {
  Config c;
  c.model.family = family;
  c.model.layers = 4;
  c.model.vocab = 37;
  c.model.seq_len = 7;
  if (family == ModelConfig::Family::kGpt2) {
    c.model.d_model = 15;
    c.model.heads = 3;
    c.model.ffn = 53;
  } else if (family == ModelConfig::Family::kNemotronH) {
    c.model.pattern = "M*-M";
    c.model.d_model = 22;
    c.model.heads = 4;
    c.model.kv_heads = 2;
    c.model.head_dim = 5;
    c.model.ffn = 31;
    c.model.mamba = {.heads = 6, .head_dim = 5, .groups = 2, .state = 3, .chunk = 4};
  } else {
    c.model.d_model = 22;
    c.model.heads = 4;
    c.model.kv_heads = 2;
    c.model.head_dim = 6;
    c.model.ffn = 31;
  }
  c.model.init_std = 0.2;
  c.data.kind = DataConfig::Kind::kSynthetic;
  c.train.seed = 5;
  c.train.steps = 10;
  c.train.micro_batch = 2;
  c.train.accumulate = 1;
  c.optimizer.lr = 3e-3;
  c.optimizer.schedule.kind = ScheduleConfig::Kind::kCosine;
  c.optimizer.schedule.warmup = 2;
  c.sharding.grad_sync = ShardingConfig::GradSync::kLast;
  return c;
}

AssembledRun PlanOf(const Trial& trial) {
  if (!trial.plans.empty())
    return Assemble(trial.config, trial.world, TestRanks().Traits(trial.world), trial.plans);
  return Assemble(
      trial.config, trial.world, TestRanks().Traits(trial.world),
      trial.all_plans ? PlanSelection{"train", "eval", "generate"} : PlanSelection{"train"});
}

void RunRank(CommFactory& factory, const Trial& trial, const AssembledRun& run,
             const std::function<void(RankContext&)>& fn) {
  TestRanks().RunOne(factory, [&](const RankSetup& setup) { RunRank(setup, trial, run, fn); });
}

void RunRank(const RankSetup& setup, const Trial& trial, const AssembledRun& run,
             const std::function<void(RankContext&)>& fn) {
  CommSet comms(setup.comms, run.layout.mesh, trial.sharing, CommSpecsOf(run.plans.All()));
  EngineOptions options;
  options.graph = trial.config.execution.graph;
  options.checked = trial.config.execution.checked;
  options.adversary_seed = trial.adversary_seed;
  options.releasable = trial.releasable;
  {
    Engine engine(
        {&setup.device, trial.kernels != nullptr ? trial.kernels : &setup.kernels, &comms},
        run.layout, run.plans, options);
    RankContext context{engine, run, setup.comms.rank(), setup.comms.world_size()};
    fn(context);
    static_cast<void>(engine.ReadScalars());  // waits for what fn has left in flight
    comms.world().Barrier();  // nobody frees graphs or arenas while a rank beside it still runs
  }
  comms.world().Barrier();  // nor communicators while one still frees those
}

void RunEngines(const Trial& trial, const std::function<void(RankContext&)>& fn) {
  const AssembledRun run = PlanOf(trial);
  TestRanks().Run(trial.world, [&](const RankSetup& setup) { RunRank(setup, trial, run, fn); });
}

std::vector<int32_t> TokensOfSample(const Config& config, int64_t sample) {
  std::vector<int32_t> tokens(static_cast<size_t>(config.model.seq_len + 1));
  const int64_t vocab = config.model.Vocab();
  // A walk whose stride and start encode the sample: distinct samples give distinct rows, and there
  // is something to learn.
  const int64_t start = sample * 11 % vocab, stride = 1 + sample % 5;
  for (size_t t = 0; t < tokens.size(); ++t)
    tokens[t] = static_cast<int32_t>((start + stride * static_cast<int64_t>(t * t)) % vocab);
  return tokens;
}

std::vector<int32_t> BatchOf(const Config& config, int world, int rank, int64_t step) {
  std::vector<int32_t> tokens;
  const int64_t ranks = config.parallel.DataRanks(world),
                mine = config.parallel.MeshOver(world).Index(rank, kDataAxes);
  const int64_t accumulate = config.train.Accumulate(ranks), rows = config.train.micro_batch;
  for (int64_t m = 0; m < accumulate; ++m)
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<int32_t> row = TokensOfSample(
          config, step * config.train.GlobalBatch(ranks) + (m * ranks + mine) * rows + r);
      tokens.insert(tokens.end(), row.begin(), row.end());
    }
  return tokens;
}

int64_t ValidTokens(const Config& config, int world) {
  return config.train.GlobalBatch(config.parallel.DataRanks(world)) * config.model.seq_len;
}

StepScalars StepOn(RankContext& rank, const Config& config, int64_t step,
                   const Injection& injection) {
  return StepWith(injection, rank.engine, BatchOf(config, rank.world, rank.rank, step), step,
                  ValidTokens(config, rank.world));
}

std::string Outcome::Bits() const {
  std::string text;
  const auto bits = [](double value) { return std::bit_cast<uint64_t>(value); };
  for (size_t i = 0; i < scalars.size(); ++i) {
    const StepScalars& s = scalars[i];
    text += fmt::format(
        "step {}: loss {} {:016x} norm {} {:016x} clip {:016x} lr {:016x} finite {} t {} skipped "
        "{}\n",
        i, s.loss, bits(s.loss), s.grad_norm, bits(s.grad_norm), bits(s.clip_scale), bits(s.lr),
        s.applied, s.adam_t, s.skipped);
  }
  return text + "parameters " + param_hash + " optimizer " + optimizer_hash;
}

namespace {

// No step leaves such a word but one that poisons what it frees: f32, bf16 and f64 of all ones are
// NaNs that no op makes.
int64_t PoisonedWords(Engine& engine, const StepPlan& plan) {
  engine.stream(StreamId::kCompute).Sync();
  ArenaView arena(engine.BindingOf(plan).arena, engine.device(), engine.stream(StreamId::kCompute));
  const int64_t begin = plan.persistent_bytes, end = plan.arena_bytes;
  const std::byte* const bytes = arena.Look(begin, end);
  int64_t words = 0;
  for (int64_t at = 0; at + 8 <= end - begin; at += 8)
    words += std::all_of(bytes + at, bytes + at + 8, [](std::byte b) { return b == kPoison; });
  return words;
}

}  // namespace

Outcome TrainOnRank(RankContext& rank, const Trial& trial) {
  Outcome mine;
  rank.engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed));
  for (int64_t step = 0; step < trial.steps; ++step)
    mine.scalars.push_back(StepOn(rank, trial.config, step));
  mine.param_hash = ParamHash(rank.engine);
  mine.optimizer_hash = OptimizerHash(rank.engine);
  mine.counters = {rank.engine.counters()};
  mine.arena_bytes = rank.engine.arena_bytes();
  for (const CommSet::Member& member : rank.engine.comms().members())
    mine.shard_communicators += member.axes == rank.run.layout.flats.front().shard;
  mine.poisoned_words = PoisonedWords(rank.engine, rank.run.plans.Of("train"));
  mine.run = rank.run;
  mine.plan_hash = PlanHash(mine.plan());
  return mine;
}

Outcome RunTrial(const Trial& trial) {
  std::vector<Outcome> ranks(static_cast<size_t>(trial.world));
  RunEngines(trial, [&](RankContext& rank) {
    ranks[static_cast<size_t>(rank.rank)] = TrainOnRank(rank, trial);
  });
  Outcome result = std::move(ranks[0]);
  for (int r = 1; r < trial.world; ++r) {
    const Outcome& other = ranks[static_cast<size_t>(r)];
    MR_CHECK(other.Bits() == result.Bits(), "rank {} has\n{}\nbut rank 0 has\n{}", r, other.Bits(),
             result.Bits());
    result.counters.push_back(other.counters.front());
  }
  return result;
}

}  // namespace millrace::test
