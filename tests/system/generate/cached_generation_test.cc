// Prefill and decode over paged caches: plans of the run, in training's arena. On the CPU their
// logits are those of the training forward, bit for bit.
#include <catch2/catch.hpp>

#include "runtime/exec/logical_tensors.h"
#include "tests/system/generate/cached_sequences.h"

namespace millrace::test {
namespace {

int64_t Collectives(const StepPlan& plan, const std::vector<Entry>& schedule) {
  int64_t count = 0;
  for (const Entry& entry : schedule)
    for (const PlanOp& op : plan.bodies[static_cast<size_t>(entry.body)].ops)
      count += IsCollective(op.op);
  return count;
}

constexpr ModelConfig::Family kFamilies[] = {
    ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama, ModelConfig::Family::kQwen3,
    ModelConfig::Family::kNemotronH};

TEST_CASE("prefill and decode have the training forward's bits, in any order and cut") {
  for (const auto family : kFamilies)
    for (const auto precision : {Precision::kFp32, Precision::kBf16})
      static_cast<void>(RequireLogits(GeneratingTrial(family, precision)));
}

TEST_CASE("they have them with any pages, window, downcast, allocator and way of execution") {
  Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kBf16);
  int option = 0;
  const auto require = [&](const std::function<void(Trial&)>& change) {
    INFO("option " << ++option << " of this list");
    Trial other = trial;
    change(other);
    static_cast<void>(RequireLogits(other));
  };
  require([](Trial& t) { t.config.inference.page_tokens = 1; });
  require([](Trial& t) { t.config.inference.page_tokens = 80; });
  require([](Trial& t) { t.config.model.attention.window = 9; });
  require([](Trial& t) { t.config.model.tied = true; });
  require([](Trial& t) { t.config.sharding.downcast = ShardingConfig::Downcast::kPerGather; });
  require([](Trial& t) { t.config.memory.allocator = MemoryConfig::Allocator::kDynamic; });
  require([](Trial& t) { t.config.sharding.reshard = ShardingConfig::Reshard::kAfterBackward; });
  require([](Trial& t) { t.config.execution.graph = GraphMode::kOff; });
  const Generated plain = RequireLogits(trial);
  trial.config.execution.checked = true;
  static_cast<void>(RequireLogits(trial, &plain));
  trial.config.execution.checked = false;
  trial.adversary_seed = 3;
  static_cast<void>(RequireLogits(trial, &plain));
  trial.adversary_seed.reset();
  require([](Trial& t) { t.config.train.micro_batch = 1; });
}

TEST_CASE("they have them 64 at a time") {
  const auto family = GENERATE(ModelConfig::Family::kQwen3, ModelConfig::Family::kNemotronH);
  INFO(Name(family));
  Trial trial = GeneratingTrial(family, Precision::kBf16);
  trial.config.inference.slots = 64;
  trial.config.inference.decode = std::vector<int64_t>{1, 64};
  RunPlans(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed));
    const std::vector<Sequence> six = SequencesOf(rank, trial.config);
    std::vector<Sequence> sequences;
    for (int64_t i = 0; i < 64; ++i) {
      Sequence& s = sequences.emplace_back(six[static_cast<size_t>(i % 6)]);
      s.slot = i * 5 % 64;
      for (size_t p = 0; p < s.pages.size(); ++p)
        s.pages[p] = static_cast<int32_t>((static_cast<int64_t>(p) * 64 + i) * 29 %
                                          trial.config.inference.Pages(80));
    }
    EngineTokenModel model(rank.engine, trial.config);
    model.Enter();
    for (Sequence& s : sequences) Prefill(rank, model, s);
    std::vector<Sequence*> all;
    for (Sequence& s : sequences) all.push_back(&s);
    for (int step = 0; step < 5; ++step) Decode(rank, model, all);
  });
}

TEST_CASE("without exact bits logits are near, with experts, too") {
  for (const auto family : {ModelConfig::Family::kLlama, ModelConfig::Family::kNemotronH,
                            ModelConfig::Family::kQwen3Moe}) {
    Trial trial = GeneratingTrial(family, Precision::kFp32);
    if (family == ModelConfig::Family::kQwen3Moe) {
      trial.config.model.ffn.reset();
      trial.config.model.moe = {.experts = 8, .top_k = 3, .ffn = 16};
    }
    trial.config.inference.exact = false;
    static_cast<void>(RequireLogits(trial));
  }
}

TEST_CASE("ranks generate on their own over weights that one prologue gathers") {
  for (const auto precision : {Precision::kFp32, Precision::kBf16All})
    for (const auto& [world, replicate] : {std::pair{2, 1}, {3, 1}, {4, 2}}) {
      Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, precision, world);
      trial.config.parallel.replicate = replicate;
      static_cast<void>(RequireLogits(trial));
      const AssembledRun run = InferenceRun(trial);
      for (const StepPlan& plan : run.plans.plans) {
        if (!plan.name.starts_with("decode") && !plan.name.starts_with("prefill")) continue;
        CHECK(Collectives(plan, plan.schedule) == 0);
        CHECK(Collectives(plan, plan.prologue) > 0);
      }
    }
}

// Bits of a run that generates after each of its steps, or not.
std::string BitsOfTraining(const Trial& trial, bool generates) {
  std::string bits;
  RunPlans(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed));
    EngineTokenModel model(rank.engine, trial.config);
    Outcome outcome;
    for (int64_t step = 0; step < 3; ++step) {
      if (generates) {
        std::vector<Sequence> sequences = SequencesOf(rank, trial.config);
        model.Enter();
        // Ranks do not generate as many tokens.
        Generate(rank, model, sequences, 30 + rank.rank);
      }
      outcome.scalars.push_back(StepOn(rank, trial.config, step));
    }
    outcome.param_hash = ParamHash(rank.engine);
    outcome.optimizer_hash = OptimizerHash(rank.engine);
    if (rank.rank == 0) bits = outcome.Bits();
  });
  return bits;
}

TEST_CASE("generating between steps changes no bit of training") {
  for (const int world : {1, 2})
    for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kQwen3}) {
      Trial trial = GeneratingTrial(family, Precision::kBf16, world);
      CHECK(BitsOfTraining(trial, true) == BitsOfTraining(trial, false));
      CHECK(BitsOfTraining(trial, false) == RunTrial(trial).Bits());
    }
}

}  // namespace
}  // namespace millrace::test
