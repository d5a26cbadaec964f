// Sequences split over the context axis, on integers: exact_trial.h.
#include <catch2/catch.hpp>

#include "tests/system/axes/exact_trial.h"

namespace millrace::test {
namespace {

Trial TrialOf(ModelConfig::Family family, const ExactShape& shape, int64_t accumulate) {
  return ExactTrial(family, shape, accumulate, {.seq_len = 24, .heads = 4, .kv_heads = 2});
}

TEST_CASE("on integers split sequences have the bits of whole ones, on every mesh",
          "[exact][context]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    const std::string whole = ExactBits(TrialOf(family, {}, 1));
    for (const ExactShape& shape : {ExactShape{1, 1, 2, 1},
                                    {1, 1, 3, 1},
                                    {1, 1, 4, 1},
                                    {1, 1, 6, 1},
                                    {1, 2, 2, 1},
                                    {2, 1, 2, 1},
                                    {2, 2, 2, 1},
                                    {1, 2, 3, 1},
                                    {3, 1, 2, 1},
                                    {1, 2, 4, 1},
                                    {1, 1, 2, 2},
                                    {1, 1, 3, 2},
                                    {1, 2, 2, 2},
                                    {2, 1, 2, 2},
                                    {1, 1, 4, 2}})
      for (const int64_t accumulate : {1, 3}) {
        if (12 % (shape.replicate * shape.shard * accumulate) != 0) continue;
        INFO("replicate " << shape.replicate << " shard " << shape.shard << " context "
                          << shape.context << " tensor " << shape.tensor << " accumulate "
                          << accumulate);
        Trial trial = TrialOf(family, shape, accumulate);
        CHECK(ExactBits(trial) == whole);
        trial.config.memory.recompute = Recompute::kBlock;
        trial.config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
        CHECK(ExactBits(trial) == whole);
      }
  }
}

// Targets of a further token cross the border of a rank's chunks, by two.
TEST_CASE("on integers other stacks on split sequences have the bits of whole ones",
          "[exact][context]") {
  for (const auto family : {ModelConfig::Family::kQwen3, ModelConfig::Family::kNemotronH}) {
    const auto trial_of = [&](const ExactShape& shape, int64_t accumulate) {
      Trial trial = TrialOf(family, shape, accumulate);
      if (family == ModelConfig::Family::kQwen3)  // times T / (T - 1): one
        trial.config.model.mtp = {.depth = 1, .loss_scale = 23.0 / 24};
      else
        trial.config.model.pattern = "*-*-";
      return trial;
    };
    const std::string whole = ExactBits(trial_of({}, 1));
    for (const ExactShape& shape :
         {ExactShape{1, 1, 2, 1}, {1, 1, 3, 1}, {1, 2, 2, 1}, {2, 1, 2, 1}, {1, 1, 2, 2}}) {
      INFO("replicate " << shape.replicate << " shard " << shape.shard << " context "
                        << shape.context << " tensor " << shape.tensor);
      CHECK(ExactBits(trial_of(shape, 3)) == whole);
    }
  }
}

TEST_CASE("on integers ranks that split sequences and share a head have the bits of whole ones",
          "[exact][context]") {
  for (const int64_t kv_heads : {1, 2}) {
    const auto trial_of = [&](const ExactShape& shape) {
      Trial trial = TrialOf(ModelConfig::Family::kLlama, shape, 3);
      trial.config.model.kv_heads = kv_heads;
      return trial;
    };
    const std::string whole = ExactBits(trial_of({}));
    for (const ExactShape& shape : {ExactShape{1, 1, 2, 2}, {1, 2, 2, 2}, {1, 1, 2, 4}}) {
      INFO("kv_heads " << kv_heads << " shard " << shape.shard << " context " << shape.context
                       << " tensor " << shape.tensor);
      Trial trial = trial_of(shape);
      CHECK(ExactBits(trial) == whole);
      trial.config.parallel.tensor_strips = 6 / shape.tensor;
      trial.config.memory.recompute = Recompute::kBlock;
      CHECK(ExactBits(trial) == whole);
    }
  }
}

TEST_CASE("leaving out, doubling or permuting any exchange of keys changes the bits",
          "[exact][context]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const int context : {2, 3})
      // Of each of 2 blocks: keys and values forward, again backward, and their gradients.
      CheckEveryExchangeShows(TrialOf(family, {.context = context}, 1), 2, 4);
}

TEST_CASE("every exchange of keys shows beside a data axis, where blocks are computed again",
          "[exact][context]") {
  for (const ExactShape& shape :
       {ExactShape{.replicate = 2, .context = 2}, {.shard = 2, .context = 2}}) {
    Trial trial = TrialOf(ModelConfig::Family::kLlama, shape, 1);
    trial.config.memory.recompute = Recompute::kBlock;
    CheckEveryExchangeShows(trial, 2, 4);  // gathered again in any backward
  }
}

}  // namespace
}  // namespace millrace::test
