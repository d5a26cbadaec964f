#include "tests/system/axes/split_trial.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/config/validate.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/run/checkpoint/run_checkpoint.h"
#include "runtime/run/checkpoint/run_saver.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace::test {
namespace {

struct Evaluated {
  double loss_sum = 0;
  std::vector<float> logits;
};

// Evaluation sums each rank's rows; generation gathers them.
Evaluated Evaluate(Trial trial, int64_t row) {
  trial.all_plans = true;
  std::vector<double> sums(static_cast<size_t>(trial.world));
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
  Evaluated found;
  for (const double part : sums) found.loss_sum += part;
  for (const auto& of_rank : logits) REQUIRE(of_rank == logits[0]);
  found.logits = std::move(logits[0]);
  return found;
}

RunIdentity IdentityOf(const Trial& trial) {
  return {ModelOptionsOf(trial.config), "tokens of samples", 0, kGlobalBatch, "{}"};
}

std::string HashOf(Engine& engine) { return ParamHash(engine) + OptimizerHash(engine); }

}  // namespace

Trial SplitTrial(ModelConfig::Family family, const SplitShape& shape, int64_t of, int64_t seq_len) {
  Base base = MakeBase(family, family == ModelConfig::Family::kGpt2, Precision::kFp32,
                       shape.world(), shape.accumulate);
  MakeTensor(base, of);
  Trial trial = base.trial;
  trial.config.model.seq_len = seq_len;
  trial.config.parallel.tensor = shape.tensor;
  trial.config.parallel.context = shape.context;
  trial.config.parallel.expert = shape.expert;
  trial.config.parallel.replicate = shape.replicate;
  trial.config.train.micro_batch =
      kGlobalBatch / (shape.replicate * shape.shard * shape.expert * shape.accumulate);
  trial.config.optimizer.eps = 1e-3;
  trial.steps = 6;
  return trial;
}

void RequireClose(const Outcome& a, const Outcome& b) {
  REQUIRE(a.scalars.size() == b.scalars.size());
  REQUIRE(a.scalars[0].loss == Approx(b.scalars[0].loss).epsilon(1e-5));
  REQUIRE(a.scalars[0].grad_norm == Approx(b.scalars[0].grad_norm).epsilon(1e-5));
  for (size_t step = 1; step < a.scalars.size(); ++step) {
    REQUIRE(a.scalars[step].loss == Approx(b.scalars[step].loss).epsilon(1e-4));
    REQUIRE(a.scalars[step].grad_norm == Approx(b.scalars[step].grad_norm).epsilon(1e-3));
  }
}

void CheckEvaluation(const TrialOfShape& trial_of, const SplitShape& shape, int64_t row) {
  const Evaluated whole = Evaluate(trial_of({}), row), split = Evaluate(trial_of(shape), row);
  CHECK(split.loss_sum == Approx(whole.loss_sum).epsilon(1e-5));
  REQUIRE(split.logits.size() == whole.logits.size());
  for (size_t i = 0; i < whole.logits.size(); ++i)
    CHECK(std::abs(split.logits[i] - whole.logits[i]) < 1e-4);
}

void RequireCheckpointsLoad(const TrialOfShape& saves, const TrialOfShape& loads,
                            const std::vector<SplitShape>& shapes) {
  for (const SplitShape& from : shapes) {
    const TempDir dir;
    const Trial trial = saves(from);
    std::string saved;
    RunEngines(trial, [&](RankContext& rank) {
      rank.engine.InitWeights(3);
      for (int64_t step = 0; step < 2; ++step) StepOn(rank, trial.config, step);
      SaveRun(rank.engine, dir.path(), {2, 2 * kGlobalBatch}, IdentityOf(trial), 2);
      const std::string hash = HashOf(rank.engine);
      if (rank.rank == 0) saved = hash;
    });
    for (const SplitShape& to : shapes) {
      INFO("from tensor " << from.tensor << " context " << from.context << " expert " << from.expert
                          << " of " << from.world() << " to tensor " << to.tensor << " context "
                          << to.context << " expert " << to.expert << " of " << to.world());
      const Trial next = loads(to);
      std::vector<std::string> loaded(static_cast<size_t>(to.world()));
      RunEngines(next, [&](RankContext& rank) {
        ResumeRun(rank.engine, dir.path(), ResumePolicy::kMust, IdentityOf(next));
        loaded[static_cast<size_t>(rank.rank)] = HashOf(rank.engine);
      });
      REQUIRE(loaded == std::vector<std::string>(loaded.size(), saved));
    }
  }
}

std::string RefusalOf(Trial trial, const std::function<void(Config&)>& change) {
  change(trial.config);
  const std::vector<ConfigProblem> problems = Validate(trial.config, {.world = trial.world});
  return problems.empty() ? "" : problems.front().text;
}

}  // namespace millrace::test
