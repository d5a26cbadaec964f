// Experts on ranks of their own, on integers: exact_trial.h. The router's stand-in gives ids by a
// row's own logits and weights that are powers of two.
#include <catch2/catch.hpp>

#include "tests/system/axes/exact_trial.h"

namespace millrace::test {
namespace {

using Family = ModelConfig::Family;

Trial TrialOf(Family family, const ExactShape& shape, int64_t accumulate) {
  Trial trial = ExactTrial(family, shape, accumulate, {.seq_len = 8, .heads = 4, .kv_heads = 4});
  trial.config.model.moe = {.experts = 12, .top_k = 3, .ffn = 6};
  if (family == Family::kNemotronH) {
    trial.config.model.pattern = "*EE";
    // Fewer on a rank than a token has, and experts that all ranks share.
    trial.config.model.moe.experts = 4;
    trial.config.model.moe.shared_ffn = 4;
    trial.config.model.moe.bias = false;
    trial.config.sharding.blocks_per_unit = int64_t{1};
  }
  return trial;
}

TEST_CASE("on integers experts on ranks of their own have the bits of experts on every rank",
          "[exact][expert]") {
  for (const Family family : {Family::kQwen3Moe, Family::kNemotronH}) {
    const std::string whole = ExactBits(TrialOf(family, {}, 1));
    for (const ExactShape& shape : {ExactShape{.shard = 2},
                                    {.expert = 2},
                                    {.expert = 4},
                                    {.shard = 2, .expert = 2},
                                    {.replicate = 2, .expert = 2},
                                    {.tensor = 2, .expert = 2},
                                    {.context = 2, .expert = 2},
                                    {.shard = 3, .expert = 2},
                                    {.replicate = 3, .expert = 4}})
      for (const int64_t accumulate : {1, 3}) {
        if (12 % (shape.replicate * shape.shard * shape.expert * accumulate) != 0) continue;
        INFO(Name(family) << " replicate " << shape.replicate << " shard " << shape.shard
                          << " context " << shape.context << " tensor " << shape.tensor
                          << " expert " << shape.expert << " accumulate " << accumulate);
        Trial trial = TrialOf(family, shape, accumulate);
        CHECK(ExactBits(trial) == whole);
        trial.config.parallel.tensor_strips = shape.tensor;
        trial.config.memory.recompute = Recompute::kBlock;
        trial.config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
        CHECK(ExactBits(trial) == whole);
      }
  }
}

// Each expert a matrix of its own, beside matrices of which ranks along tensor have parts; over
// tensor, too, experts are whole on the rank that has them.
TEST_CASE("on integers experts updated by Muon have the bits of experts on every rank",
          "[exact][expert]") {
  const auto trial_of = [](const ExactShape& shape) {
    Trial trial = TrialOf(Family::kQwen3Moe, shape, 1);
    trial.config.optimizer.name = OptimizerKind::kMuon;
    return trial;
  };
  const std::string whole = ExactBits(trial_of({}));
  for (const ExactShape& shape : {ExactShape{.shard = 2},
                                  {.shard = 3},
                                  {.expert = 4},
                                  {.shard = 2, .expert = 2},
                                  {.replicate = 2, .expert = 2},
                                  {.tensor = 2, .expert = 2},
                                  {.shard = 2, .tensor = 2},
                                  {.shard = 2, .tensor = 2, .expert = 2}})
    for (const bool over_tensor : {false, true}) {
      if (over_tensor && shape.tensor == 1) continue;
      INFO("replicate " << shape.replicate << " shard " << shape.shard << " tensor " << shape.tensor
                        << " expert " << shape.expert << " over tensor " << over_tensor);
      Trial trial = trial_of(shape);
      trial.config.parallel.experts_over_tensor = over_tensor;
      CHECK(ExactBits(trial) == whole);
    }
}

// Experts in the block that predicts one token further alone.
Trial FurtherTrialOf(const ExactShape& shape, int64_t accumulate) {
  Trial trial = TrialOf(Family::kNemotronH, shape, accumulate);
  trial.config.model.pattern = "*-";
  // Times T / (T - 1): one.
  trial.config.model.mtp = {.depth = 1, .loss_scale = 7.0 / 8, .pattern = "*E"};
  return trial;
}

TEST_CASE("on integers experts that predict further have the bits of experts on every rank",
          "[exact][expert]") {
  const std::string whole = ExactBits(FurtherTrialOf({}, 1));
  for (const ExactShape& shape : {ExactShape{.shard = 2},
                                  {.expert = 2},
                                  {.expert = 4},
                                  {.shard = 2, .expert = 2},
                                  {.replicate = 2, .expert = 2}})
    for (const int64_t accumulate : {1, 3}) {
      INFO("replicate " << shape.replicate << " shard " << shape.shard << " expert " << shape.expert
                        << " accumulate " << accumulate);
      CHECK(ExactBits(FurtherTrialOf(shape, accumulate)) == whole);
    }
  // Of the one block behind the trunk, as below.
  CheckEveryExchangeShows(FurtherTrialOf({.expert = 2}, 1), 4, 4);
}

TEST_CASE("leaving out, doubling or permuting any exchange of experts' rows changes the bits",
          "[exact][expert]") {
  for (const int expert : {2, 3, 4})
    // Of each of 2 blocks: counts, weights, rows and their way back; in the backward the gradient
    // of what came back, rows again, and the gradients of rows and weights.
    CheckEveryExchangeShows(TrialOf(Family::kQwen3Moe, {.expert = expert}, 1), 2 * 4, 2 * 4);
}

TEST_CASE("on integers experts split over tensor, too, have the bits of experts on every rank",
          "[exact][expert]") {
  for (const Family family : {Family::kQwen3Moe, Family::kNemotronH}) {
    const std::string whole = ExactBits(TrialOf(family, {}, 1));
    for (const ExactShape& shape : {ExactShape{.tensor = 2},
                                    {.tensor = 2, .expert = 2},
                                    {.shard = 2, .tensor = 2},
                                    {.context = 2, .tensor = 2}})
      for (const int64_t accumulate : {1, 3}) {
        if (accumulate > 1 && shape.world() > 2) continue;
        INFO(Name(family) << " shard " << shape.shard << " context " << shape.context << " expert "
                          << shape.expert << " accumulate " << accumulate);
        Trial trial = TrialOf(family, shape, accumulate);
        trial.config.parallel.experts_over_tensor = true;
        CHECK(ExactBits(trial) == whole);
        trial.config.parallel.tensor_strips = shape.context == 1 ? 2 : 1;
        trial.config.memory.recompute = Recompute::kBlock;
        trial.config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
        CHECK(ExactBits(trial) == whole);
      }
  }
}

TEST_CASE("with experts split over tensor every exchange shows", "[exact][expert]") {
  Trial trial = TrialOf(Family::kQwen3Moe, {.tensor = 2, .expert = 2}, 1);
  trial.config.parallel.experts_over_tensor = true;
  // Beside those above, of each attention: rows and their sums; in the backward rows again, and the
  // gradients of both.
  CheckEveryExchangeShows(trial, 2 * (4 + 2), 2 * (4 + 3));
}

}  // namespace
}  // namespace millrace::test
