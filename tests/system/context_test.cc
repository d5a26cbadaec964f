// Sequences split over the context axis, beside the same model with whole ones: losses, norms and
// weights to the tolerance of tolerance_test.cc, whose derivation holds: sums in another order.
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/config/validate.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/run/checkpoint/run_checkpoint.h"
#include "runtime/run/checkpoint/run_saver.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/system/closed_forms.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

constexpr int64_t kGlobalBatch = 12;

struct Shape {
  int64_t replicate = 1, shard = 1, context = 1, tensor = 1, accumulate = 1;
  int world() const { return static_cast<int>(replicate * shard * context * tensor); }
};

Trial TrialOf(ModelConfig::Family family, const Shape& shape) {
  Base base = MakeBase(family, family == ModelConfig::Family::kGpt2, Precision::kFp32,
                       shape.world(), shape.accumulate);
  MakeTensor(base, 2);
  Trial trial = base.trial;
  trial.config.model.seq_len = 24;
  trial.config.parallel.tensor = shape.tensor;
  trial.config.parallel.context = shape.context;
  trial.config.parallel.replicate = shape.replicate;
  trial.config.train.micro_batch =
      kGlobalBatch / (shape.replicate * shape.shard * shape.accumulate);
  trial.config.optimizer.eps = 1e-3;
  trial.steps = 6;
  return trial;
}

void CheckClose(const Outcome& a, const Outcome& b) {
  REQUIRE(a.scalars[0].loss == Approx(b.scalars[0].loss).epsilon(1e-5));
  REQUIRE(a.scalars[0].grad_norm == Approx(b.scalars[0].grad_norm).epsilon(1e-5));
  for (size_t step = 1; step < a.scalars.size(); ++step) {
    REQUIRE(a.scalars[step].loss == Approx(b.scalars[step].loss).epsilon(1e-4));
    REQUIRE(a.scalars[step].grad_norm == Approx(b.scalars[step].grad_norm).epsilon(1e-3));
  }
}

TEST_CASE("a model whose sequences are split trains as with whole ones", "[context]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    const Outcome whole = RunTrial(TrialOf(family, {}));
    for (const Shape& shape : {Shape{1, 1, 2, 1, 1},
                               {1, 1, 3, 1, 3},
                               {1, 2, 2, 1, 1},
                               {2, 1, 2, 1, 2},
                               {1, 1, 4, 1, 1},
                               {1, 1, 2, 2, 1},
                               {2, 2, 2, 1, 1}}) {
      INFO("replicate " << shape.replicate << " shard " << shape.shard << " context "
                        << shape.context << " tensor " << shape.tensor << " accumulate "
                        << shape.accumulate);
      const Trial trial = TrialOf(family, shape);
      const Outcome split = RunTrial(trial);
      CheckClose(split, whole);
      RequireCounters(trial, split);
    }
  }
}

// Recomputed exchanges, graphs, the checked mode and the adversary have one result within a mesh.
TEST_CASE("options that keep bits keep them with split sequences", "[context]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    const Trial plain = TrialOf(family, {1, 1, 2, 2, 2});
    const std::string bits = RunTrial(plain).Bits();
    const auto check = [&](const char* what, const std::function<void(Trial&)>& change) {
      INFO(what);
      Trial trial = plain;
      change(trial);
      CHECK(RunTrial(trial).Bits() == bits);
    };
    check("recompute block", [](Trial& t) { t.config.memory.recompute = Recompute::kBlock; });
    check("recompute norms", [](Trial& t) { t.config.memory.recompute = Recompute::kNorms; });
    check("graph off", [](Trial& t) { t.config.execution.graph = ExecutionConfig::Graph::kOff; });
    check("graph microbatch",
          [](Trial& t) { t.config.execution.graph = ExecutionConfig::Graph::kMicrobatch; });
    check("checked", [](Trial& t) { t.config.execution.checked = true; });
    check("adversary", [](Trial& t) { t.adversary_seed = 5; });
    check("coloured",
          [](Trial& t) { t.config.memory.allocator = MemoryConfig::Allocator::kColoured; });
    check("reshard never",
          [](Trial& t) { t.config.sharding.reshard = ShardingConfig::Reshard::kNever; });
  }
}

// Evaluation sums each rank's rows; generation gathers them.
TEST_CASE("evaluation and logits with split sequences are those with whole ones", "[context]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    const auto run = [&](const Shape& shape, int64_t row) {
      Trial trial = TrialOf(family, shape);
      trial.all_plans = true;
      std::vector<double> sums(static_cast<size_t>(shape.world()));
      std::vector<std::vector<float>> logits(sums.size());
      RunEngines(trial, [&](RankContext& rank) {
        rank.engine.InitWeights(5);
        const auto r = static_cast<size_t>(rank.rank);
        std::vector<int32_t> tokens = BatchOf(trial.config, rank.world, rank.rank, 0);
        sums[r] = rank.engine.EvalLossSum(tokens);
        tokens = TokensOfSample(trial.config, 3);
        tokens.pop_back();
        logits[r] = rank.engine.Logits(tokens, row, trial.config.model.Vocab());
      });
      double sum = 0;
      for (const double part : sums) sum += part;
      for (const auto& of_rank : logits) MR_CHECK(of_rank == logits[0], "ranks' logits differ");
      return std::pair{sum, logits[0]};
    };
    for (const int64_t row : {0, 5, 11, 12, 23}) {
      const auto [sum, logits] = run({}, row);
      for (const Shape& shape : {Shape{1, 1, 2, 1, 1}, {1, 1, 3, 1, 1}, {1, 2, 2, 2, 1}}) {
        const auto [split_sum, split_logits] = run(shape, row);
        CHECK(split_sum == Approx(sum).epsilon(1e-5));
        REQUIRE(split_logits.size() == logits.size());
        for (size_t i = 0; i < logits.size(); ++i)
          CHECK(std::abs(split_logits[i] - logits[i]) < 1e-4);
      }
    }
  }
}

RunIdentity IdentityOf(const Trial& trial) {
  return {ModelOptionsOf(trial.config), "tokens of samples", 0, kGlobalBatch, "{}"};
}

TEST_CASE("a checkpoint of a mesh with context loads at any other, and back", "[context]") {
  const Shape shapes[] = {{}, {1, 1, 2, 1, 1}, {1, 2, 2, 1, 1}, {2, 1, 2, 1, 1}, {1, 1, 2, 2, 1}};
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    for (const Shape& from : shapes) {
      const TempDir dir;
      const Trial trial = TrialOf(family, from);
      std::string saved;
      RunEngines(trial, [&](RankContext& rank) {
        rank.engine.InitWeights(3);
        for (int64_t step = 0; step < 2; ++step) StepOn(rank, trial.config, step);
        SaveRun(rank.engine, dir.path(), {2, 2 * kGlobalBatch}, IdentityOf(trial), 2);
        const std::string hash = ParamHash(rank.engine) + OptimizerHash(rank.engine);
        if (rank.rank == 0) saved = hash;
      });
      for (const Shape& to : shapes) {
        INFO("from context " << from.context << " of " << from.world() << " to context "
                             << to.context << " of " << to.world());
        const Trial next = TrialOf(family, to);
        std::vector<std::string> loaded(static_cast<size_t>(to.world()));
        RunEngines(next, [&](RankContext& rank) {
          ResumeRun(rank.engine, dir.path(), ResumePolicy::kMust, IdentityOf(next));
          loaded[static_cast<size_t>(rank.rank)] =
              ParamHash(rank.engine) + OptimizerHash(rank.engine);
        });
        REQUIRE(loaded == std::vector<std::string>(loaded.size(), saved));
      }
    }
  }
}

TEST_CASE("lengths that twice the context axis does not divide are refused, with those that would",
          "[context]") {
  const auto refusal = [](const std::function<void(Config&)>& change) {
    Trial trial = TrialOf(ModelConfig::Family::kLlama, {1, 1, 2, 1, 1});
    change(trial.config);
    const std::vector<ConfigProblem> problems = Validate(trial.config, {.world = trial.world});
    return problems.empty() ? "" : problems.front().text;
  };
  using Catch::Contains;
  CHECK(refusal([](Config&) {}).empty());
  CHECK_THAT(refusal([](Config& c) { c.model.seq_len = 26; }),
             Contains("4 equal chunks") && Contains("26 is no") && Contains("28 would be") &&
                 Contains("so would 24"));
  CHECK_THAT(refusal([](Config& c) { c.model.seq_len = 3; }),
             Contains("4 would be") && !Contains("so would"));
  CHECK_THAT(refusal([](Config& c) { c.parallel.shard = 2; }),
             Contains("shard * replicate * context") && Contains("2 ranks"));
  CHECK_THAT(refusal([](Config& c) { c.parallel.context = 3; }),
             Contains("replicate * context must divide the world"));
}

}  // namespace
}  // namespace millrace::test
