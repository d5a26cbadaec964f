// Blocks split over the tensor axis, on integers: exact_trial.h.
#include <catch2/catch.hpp>

#include "tests/system/axes/exact_trial.h"

namespace millrace::test {
namespace {

// Sizes that 2, 3 and 4 ranks can split.
Trial TrialOf(ModelConfig::Family family, const ExactShape& shape, int64_t accumulate) {
  return ExactTrial(family, shape, accumulate, {.seq_len = 12, .heads = 12, .kv_heads = 12});
}

TEST_CASE("on integers a split model has the bits of the whole one, on every mesh",
          "[exact][tensor]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama}) {
    const std::string whole = ExactBits(TrialOf(family, {}, 1));
    for (const ExactShape& shape : {ExactShape{1, 2, 1, 1},
                                    {2, 2, 1, 1},
                                    {1, 1, 1, 2},
                                    {1, 1, 1, 3},
                                    {1, 1, 1, 4},
                                    {1, 2, 1, 2},
                                    {2, 1, 1, 2},
                                    {1, 1, 1, 6},
                                    {1, 2, 1, 3},
                                    {3, 1, 1, 2},
                                    {2, 2, 1, 2},
                                    {1, 4, 1, 2},
                                    {1, 2, 1, 4},
                                    {2, 1, 1, 4}})
      for (const int64_t accumulate : {1, 3}) {
        if (12 % (shape.replicate * shape.shard * accumulate) != 0) continue;
        INFO("replicate " << shape.replicate << " shard " << shape.shard << " tensor "
                          << shape.tensor << " accumulate " << accumulate);
        Trial trial = TrialOf(family, shape, accumulate);
        CHECK(ExactBits(trial) == whole);
        trial.config.parallel.tensor_strips = shape.tensor > 1 ? 2 : 1;
        trial.config.memory.recompute = Recompute::kBlock;
        trial.config.sharding.grad_sync = ShardingConfig::GradSync::kEvery;
        CHECK(ExactBits(trial) == whole);
      }
  }
}

// Whole matrices over shard and tensor: what is made of them has their bits, whoever owns them,
// however many are multiplied at once, and however many ranks had parts.
TEST_CASE("on integers matrices updated by Muon have the whole model's bits", "[exact][tensor]") {
  for (const auto& [family, kv_heads] : {std::pair{ModelConfig::Family::kGpt2, int64_t{12}},
                                         {ModelConfig::Family::kLlama, int64_t{12}},
                                         {ModelConfig::Family::kLlama, int64_t{2}}})
    for (const int64_t blocks : {1, 2}) {
      const auto trial_of = [&](const ExactShape& shape, int64_t accumulate) {
        Trial trial = TrialOf(family, shape, accumulate);
        if (family == ModelConfig::Family::kLlama) trial.config.model.kv_heads = kv_heads;
        trial.config.optimizer.name = OptimizerKind::kMuon;
        trial.config.sharding.blocks_per_unit = blocks;
        return trial;
      };
      const std::string whole = ExactBits(trial_of({}, 1));
      for (const ExactShape& shape : {ExactShape{1, 2, 1, 1},
                                      {1, 3, 1, 1},
                                      {1, 1, 1, 2},
                                      {1, 1, 1, 4},
                                      {1, 2, 1, 2},
                                      {2, 1, 1, 2},
                                      {1, 3, 1, 2},
                                      {2, 2, 1, 2},
                                      {1, 2, 1, 4}}) {
        INFO("kv_heads " << kv_heads << " blocks " << blocks << " replicate " << shape.replicate
                         << " shard " << shape.shard << " tensor " << shape.tensor);
        CHECK(ExactBits(trial_of(shape, 1)) == whole);
      }
      CHECK(ExactBits(trial_of({}, 3)) == whole);
    }
}

// QK-norms and a block that predicts one token further; a row of single branches.
std::vector<Trial> StacksOf(const ExactShape& shape, int64_t accumulate) {
  Trial further = TrialOf(ModelConfig::Family::kQwen3, shape, accumulate);
  further.config.model.mtp = {.depth = 1, .loss_scale = 11.0 / 12};  // times T / (T - 1): one
  Trial hybrid = TrialOf(ModelConfig::Family::kNemotronH, shape, accumulate);
  hybrid.config.model.pattern = "*-*-";
  hybrid.config.sharding.blocks_per_unit = int64_t{1};
  return {further, hybrid};
}

TEST_CASE("on integers other stacks, split, have the bits of the whole", "[exact][tensor]") {
  for (const size_t stack : {0, 1}) {
    const std::string whole = ExactBits(StacksOf({}, 1)[stack]);
    for (const ExactShape& shape :
         {ExactShape{1, 2, 1, 1}, {1, 1, 1, 2}, {1, 1, 1, 3}, {1, 2, 1, 2}, {2, 1, 1, 2}})
      for (const Recompute recompute : {Recompute::kNone, Recompute::kBlock}) {
        INFO("stack " << stack << " replicate " << shape.replicate << " shard " << shape.shard
                      << " tensor " << shape.tensor);
        Trial trial = StacksOf(shape, 3)[stack];
        trial.config.memory.recompute = recompute;
        CHECK(ExactBits(trial) == whole);
      }
  }
}

// Ranks that share a key and value head, on both sides of as many ranks as heads.
TEST_CASE("on integers more ranks than key and value heads have the whole model's bits",
          "[exact][tensor]") {
  for (const int64_t kv_heads : {1, 2, 3, 6}) {
    const auto trial_of = [&](const ExactShape& shape, int64_t accumulate) {
      Trial trial = TrialOf(ModelConfig::Family::kLlama, shape, accumulate);
      trial.config.model.kv_heads = kv_heads;
      return trial;
    };
    const std::string whole = ExactBits(trial_of({}, 1));
    for (const ExactShape& shape : {ExactShape{1, 1, 1, 2},
                                    {1, 1, 1, 3},
                                    {1, 1, 1, 4},
                                    {1, 1, 1, 6},
                                    {1, 2, 1, 2},
                                    {2, 1, 1, 4},
                                    {1, 2, 1, 4}}) {
      if (shape.tensor % kv_heads != 0 && kv_heads % shape.tensor != 0) continue;
      for (const auto concat :
           {ShardingConfig::GradConcat::kDirect, ShardingConfig::GradConcat::kEvery}) {
        INFO("kv_heads " << kv_heads << " replicate " << shape.replicate << " shard " << shape.shard
                         << " tensor " << shape.tensor);
        Trial trial = trial_of(shape, 3);
        if (12 % (shape.replicate * shape.shard * 3) != 0) continue;
        trial.config.sharding.grad_concat = concat;
        CHECK(ExactBits(trial) == whole);
        trial.config.parallel.tensor_strips = 2;
        trial.config.memory.recompute = Recompute::kBlock;
        CHECK(ExactBits(trial) == whole);
      }
    }
  }
}

TEST_CASE("leaving out, doubling or permuting any exchange changes the bits", "[exact][tensor]") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const int tensor : {2, 3})
      // Of each of 2 blocks' 2 halves: a gather and a sum forward, 2 gathers and a sum backward.
      CheckEveryExchangeShows(TrialOf(family, {.tensor = tensor}, 1), 2 * 2 * 2, 2 * 2 * 3);
}

TEST_CASE("every exchange of two strips shows beside a data axis, recomputed or not",
          "[exact][tensor]") {
  for (const auto& [shape, recompute] :
       {std::pair{ExactShape{.replicate = 2, .tensor = 2}, Recompute::kNone},
        {ExactShape{.shard = 2, .tensor = 2}, Recompute::kBlock}}) {
    Trial trial = TrialOf(ModelConfig::Family::kLlama, shape, 1);
    trial.config.model.layers = 1;
    trial.config.parallel.tensor_strips = 2;
    trial.config.memory.recompute = recompute;
    // Sums are kept, and rows gathered again in any backward: recomputing adds none.
    CheckEveryExchangeShows(trial, 2 * (2 * 2), 2 * (2 * 3));
  }
}

TEST_CASE("every exchange shows where ranks split sequences and share a key and value head",
          "[exact][tensor]") {
  Trial trial = TrialOf(ModelConfig::Family::kLlama, {.context = 2, .tensor = 2}, 1);
  trial.config.model.kv_heads = 1;
  // Beside those above, of each block: keys and values forward, again backward, their gradients.
  CheckEveryExchangeShows(trial, 2 * (2 * 2 + 1), 2 * (2 * 3 + 2));
}

}  // namespace
}  // namespace millrace::test
