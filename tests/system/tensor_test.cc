// Blocks split over the tensor axis, beside the same model whole: losses, norms and weights to the
// tolerance of tolerance_test.cc, whose derivation holds: sums in another order.
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
  int64_t replicate = 1, shard = 1, tensor = 1, accumulate = 1;
  int world() const { return static_cast<int>(replicate * shard * tensor); }
};

// The model is that of MakeTensor(of), whatever the shape.
Trial TrialOf(ModelConfig::Family family, const Shape& shape, int64_t of) {
  Base base = MakeBase(family, family == ModelConfig::Family::kGpt2, Precision::kFp32,
                       shape.world(), shape.accumulate);
  MakeTensor(base, of);
  Trial trial = base.trial;
  trial.config.parallel.tensor = shape.tensor;
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

TEST_CASE("a model split over ranks trains as the whole one does", "[tensor]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const int64_t tensor : {2, 3}) {
      const Outcome whole = RunTrial(TrialOf(family, {1, 1, 1, 1}, tensor));
      for (const Shape& shape : {Shape{1, 1, tensor, 1},
                                 {1, 1, tensor, 3},
                                 {1, 2, tensor, 1},
                                 {2, 1, tensor, 2},
                                 {2, 2, tensor, 1}}) {
        if (shape.world() > 8) continue;
        INFO("replicate " << shape.replicate << " shard " << shape.shard << " tensor "
                          << shape.tensor << " accumulate " << shape.accumulate);
        const Trial trial = TrialOf(family, shape, tensor);
        const Outcome split = RunTrial(trial);
        CheckClose(split, whole);
        RequireCounters(trial, split);
      }
    }
}

// Evaluation sums each rank's rows; generation gathers them.
TEST_CASE("evaluation and logits of a split model are those of the whole one", "[tensor]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    const auto run = [&](const Shape& shape) {
      Trial trial = TrialOf(family, shape, 2);
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
        logits[r] = rank.engine.Logits(tokens, 4, trial.config.model.Vocab());
      });
      double sum = 0;
      for (const double part : sums) sum += part;
      for (const auto& of_rank : logits) MR_CHECK(of_rank == logits[0], "ranks' logits differ");
      return std::pair{sum, logits[0]};
    };
    const auto [sum, logits] = run({1, 1, 1, 1});
    for (const Shape& shape : {Shape{1, 1, 2, 1}, {1, 2, 2, 1}}) {
      const auto [split_sum, split_logits] = run(shape);
      CHECK(split_sum == Approx(sum).epsilon(1e-5));
      REQUIRE(split_logits.size() == logits.size());
      for (size_t i = 0; i < logits.size(); ++i)
        CHECK(std::abs(split_logits[i] - logits[i]) < 1e-4);
    }
  }
}

RunIdentity IdentityOf(const Trial& trial) {
  return {ModelOptionsOf(trial.config), "tokens of samples", 0, kGlobalBatch, "{}"};
}

TEST_CASE("a checkpoint of any mesh loads at any other, value by value", "[tensor]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const Precision precision : {Precision::kFp32, Precision::kBf16All}) {
      const Shape shapes[] = {{1, 1, 1, 1}, {1, 1, 2, 1}, {1, 2, 2, 1}, {2, 1, 2, 1}, {1, 3, 1, 1}};
      for (const Shape& from : shapes) {
        const TempDir dir;
        Trial trial = TrialOf(family, from, 2);
        SetPrecision(trial.config, precision);
        std::string saved;
        RunEngines(trial, [&](RankContext& rank) {
          rank.engine.InitWeights(3);
          for (int64_t step = 0; step < 2; ++step) StepOn(rank, trial.config, step);
          SaveRun(rank.engine, dir.path(), {2, 2 * kGlobalBatch}, IdentityOf(trial), 2);
          const std::string hash = ParamHash(rank.engine) + OptimizerHash(rank.engine);
          if (rank.rank == 0) saved = hash;
        });
        for (const Shape& to : shapes) {
          INFO("from tensor " << from.tensor << " of " << from.world() << " to tensor " << to.tensor
                              << " of " << to.world());
          const Trial next = TrialOf(family, to, 2);
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

// The same values begin a run on every mesh.
TEST_CASE("a split model begins with the whole one's weights", "[tensor]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    std::vector<std::string> hashes;
    for (const Shape& shape : {Shape{1, 1, 1, 1}, {1, 1, 2, 1}, {1, 2, 2, 1}, {2, 1, 2, 1}}) {
      const Trial trial = TrialOf(family, shape, 2);
      RunEngines(trial, [&](RankContext& rank) {
        rank.engine.InitWeights(11);
        const std::string hash = ParamHash(rank.engine);
        if (rank.rank == 0) hashes.push_back(hash);
      });
    }
    REQUIRE(hashes == std::vector<std::string>(hashes.size(), hashes[0]));
  }
}

TEST_CASE("sizes that the tensor axis does not divide are refused, with those that would",
          "[tensor]") {
  const auto refusal = [](const std::function<void(Config&)>& change) {
    Trial trial = TrialOf(ModelConfig::Family::kLlama, {1, 1, 2, 1}, 2);
    change(trial.config);
    const std::vector<ConfigProblem> problems = Validate(trial.config, {.world = trial.world});
    return problems.empty() ? "" : problems.front().text;
  };
  CHECK(refusal([](Config&) {}).empty());
  CHECK_THAT(refusal([](Config& c) { c.model.ffn = 31; }),
             Catch::Contains("model.ffn 31") && Catch::Contains("tensor can be 1"));
  CHECK_THAT(refusal([](Config& c) { c.model.seq_len = 7; }), Catch::Contains("model.seq_len 7"));
  CHECK_THAT(refusal([](Config& c) { c.parallel.tensor = 4; }),
             Catch::Contains("model.heads 6") && Catch::Contains("tensor can be 1, 2"));
  CHECK_THAT(refusal([](Config& c) { c.parallel.shard = 2; }),
             Catch::Contains("shard * replicate * tensor"));
}

}  // namespace
}  // namespace millrace::test
