// Rules over what a model consists of.
#include <catch2/catch.hpp>

#include "runtime/config/validate.h"
#include "tests/runtime/config/load_support.h"
#include "tests/runtime/config/validate_cases.h"

namespace millrace {
namespace {

TEST_CASE("heads divide the model", "[config][validate]") {
  const std::string llama = "model.family=llama";
  Check(
      {{{"model.d_model=100", "model.heads=3"}, "model.d_model", "multiple of heads"},
       {{"model.d_model=99", "model.heads=3"}, "", ""},
       {{llama, "model.heads=6", "model.kv_heads=4"}, "model.kv_heads", "divide heads"},
       {{llama, "model.heads=6", "model.kv_heads=3"}, "", ""},
       {{llama, "model.heads=6", "model.kv_heads=12"}, "model.kv_heads", "divide heads"},
       {{llama, "model.d_model=99", "model.heads=3"}, "model.head_dim", "even head_dim (here 33)"},
       {{llama, "model.head_dim=7"}, "model.head_dim", "even head_dim"},
       {{llama, "model.d_model=100", "model.heads=3", "model.head_dim=32"}, "", ""},
       {{"model.layers=3", "sharding.blocks_per_unit=4"},
        "sharding.blocks_per_unit",
        "more blocks"},
       {{"model.layers=3", "sharding.blocks_per_unit=2"}, "", ""}});
}

TEST_CASE("a list of blocks per unit adds up to the model's blocks", "[config][validate]") {
  Check({{{"model.layers=8", "sharding.blocks_per_unit=[1, 2, 4, 1]"}, "", ""},
         {{"model.layers=8", "sharding.blocks_per_unit=[8]"}, "", ""},
         {{"model.layers=8", "sharding.blocks_per_unit=[1, 2, 4]"},
          "sharding.blocks_per_unit",
          "the units hold 7 blocks, but the model has 8"},
         {{"model.layers=8", "sharding.blocks_per_unit=[1, 2, 4, 2]"},
          "sharding.blocks_per_unit",
          "the units hold 9 blocks, but the model has 8"},
         {{"model.layers=8", "sharding.blocks_per_unit=[4]"},
          "sharding.blocks_per_unit",
          "the units hold 4 blocks, but the model has 8"}});
}

TEST_CASE("blocks of units: the number for all but what is left, or as listed",
          "[config][validate]") {
  using Blocks = std::vector<int64_t>;
  ShardingConfig sharding;
  REQUIRE(sharding.BlocksOfUnits(3) == Blocks{1, 1, 1});
  sharding.blocks_per_unit = int64_t{2};
  REQUIRE(sharding.BlocksOfUnits(4) == Blocks{2, 2});
  REQUIRE(sharding.BlocksOfUnits(5) == Blocks{2, 2, 1});
  sharding.blocks_per_unit = Blocks{3, 1, 2};
  REQUIRE(sharding.BlocksOfUnits(6) == Blocks{3, 1, 2});
}

TEST_CASE("a key that a family cannot honour is refused by name", "[config][validate]") {
  const std::string llama = "model.family=llama";
  Check({{{"model.kv_heads=4"}, "model.kv_heads", "no grouped-query attention"},
         {{"model.kv_heads=12"}, "", ""},
         {{"model.head_dim=32"}, "model.head_dim", "d_model / heads"},
         {{"model.head_dim=64"}, "", ""},
         {{"model.activation=swiglu"}, "model.activation", "gpt2's activation is gelu"},
         {{"model.activation=gelu"}, "", ""},
         {{llama, "model.activation=gelu"}, "model.activation", "llama's activation is swiglu"},
         {{llama, "model.rope_theta=500000", "model.activation=swiglu", "model.tied=true"}, "", ""},
         {{llama, R"(model.rope_scaling={"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                     "high_freq_factor": 4, "original_max_position_embeddings": 512})"},
          "model.rope_scaling.low_freq_factor",
          "less than high_freq_factor"}});
}

TEST_CASE("a pattern has the blocks of its family", "[config][validate]") {
  const std::string hybrid = "model.family=nemotron_h", experts = "model.family=qwen3_moe";
  Check({{{hybrid}, "model.pattern", "M (Mamba-2), E (mixture of experts)"},
         {{hybrid, "model.pattern=M*-E"}, "", ""},
         {{hybrid, "model.pattern=M*xE"}, "model.pattern", "character 3 is 'x'"},
         {{experts, "model.pattern=E-E"}, "", ""},
         {{experts}, "", ""},
         {{experts, "model.pattern=E*"}, "model.pattern", "character 2 is '*'"},
         {{"model.family=qwen3", "model.pattern=--"}, "model.pattern", "qwen3 are all alike"},
         {{"model.pattern=--"}, "model.pattern", "gpt2 are all alike"},
         {{hybrid, "model.pattern=M-*-", "sharding.blocks_per_unit=5"},
          "sharding.blocks_per_unit",
          "more blocks"},
         {{hybrid, "model.pattern=M-*-", "sharding.blocks_per_unit=[1, 2]"},
          "sharding.blocks_per_unit",
          "the model has 4"}});
}

TEST_CASE("a pattern's blocks are what the model consists of", "[config][validate]") {
  ModelConfig m;
  REQUIRE(m.Blocks() == "------------");
  m.family = ModelFamily::kQwen3Moe;
  m.layers = 2;
  REQUIRE(m.Blocks() == "EE");
  REQUIRE(m.Layers() == 2);
  REQUIRE((m.Has('*') && m.Has('E') && !m.Has('-')));
  m.pattern = "E--";
  REQUIRE(m.Blocks() == "E--");
  REQUIRE(m.Layers() == 3);
  REQUIRE(m.Has('-'));
  m.family = ModelFamily::kNemotronH;
  REQUIRE(!m.Has('*'));
}

TEST_CASE("a block that predicts further has branches of its family", "[config][validate]") {
  const std::string hybrid = "model.family=nemotron_h", one = "model.mtp.depth=1";
  Check({{{"model.family=qwen3", one}, "", ""},
         {{"model.family=qwen3", one, "model.mtp.pattern=E"}, "model.mtp.pattern", "has one of -"},
         {{"model.family=qwen3_moe", one, "model.mtp.pattern=-"}, "", ""},
         {{"model.family=qwen3_moe", one, "model.mtp.pattern=E-"},
          "model.mtp.pattern",
          "has one of E-"},
         {{one}, "model.mtp.depth", "gpt2 has no blocks"},
         {{"model.mtp.depth=7"}, "--set", "from 0 to 6"},
         {{hybrid, "model.pattern=M*-", one}, "model.mtp.pattern", "needs the branches"},
         {{hybrid, "model.pattern=M*-", one, "model.mtp.pattern=*E"}, "", ""},
         {{hybrid, "model.pattern=M*-", one, "model.mtp.pattern=*x"},
          "model.mtp.pattern",
          "branches of ME*-"},
         {{"model.family=llama", one, "model.seq_len=1"}, "model.mtp.depth", "more tokens"}});
}

TEST_CASE("sections of a block are refused where they contradict themselves",
          "[config][validate]") {
  const std::string all = "model.family=nemotron_h", pattern = "model.pattern=M*-E";
  Check({{{all, pattern, "model.moe.groups=3"}, "model.moe.groups", "divide experts"},
         {{all, pattern, "model.moe.top_groups=2"}, "model.moe.top_groups", "no more than all"},
         {{all, pattern, "model.moe.groups=4", "model.moe.top_k=3"},
          "model.moe.top_k",
          "at most 2 experts"},
         {{all, pattern, "model.moe.groups=4", "model.moe.top_groups=2", "model.moe.top_k=3"},
          "",
          ""},
         {{all, pattern, "model.moe.groups=8", "model.moe.top_k=1"},
          "model.moe.groups",
          "it needs two"},
         {{all, pattern, "model.activation=gelu"}, "model.activation", "swiglu or relu2"},
         {{all, "model.pattern=M*-", "model.activation=gelu"}, "", ""},
         {{all, pattern, "parallel.context=2"}, "parallel.context", "context must be 1"},
         {{all, pattern, "model.mamba.groups=3"}, "model.mamba.groups", "divide heads"},
         {{all, pattern, "model.mamba.dt_min=2", "model.mamba.dt_max=1"},
          "model.mamba.dt_min",
          "less than dt_max"},
         {{all, pattern, "model.head_dim=7"}, "", ""},
         {{all, pattern, "model.head_dim=7", "model.attention.rope=true"},
          "model.head_dim",
          "even head_dim"},
         {{"model.attention.rope=true"}, "model.attention.rope", "learned positions"},
         {{"model.attention.qk_norm=true"}, "model.attention.qk_norm", "no norms"},
         {{"model.attention.window=8"}, "model.attention.window", "sees all"},
         {{"model.family=qwen3", "model.activation=relu2"}, "model.activation", "is swiglu"},
         {{all, pattern, "parallel.tensor=4", "model.mamba.groups=2"},
          "parallel.tensor",
          "model.mamba.groups 2"}});
}

TEST_CASE("what is not given follows the family", "[config][validate]") {
  ModelConfig model;
  REQUIRE(model.Ffn() == 3072);
  REQUIRE(model.Tied());
  REQUIRE(model.ActivationKind() == ModelConfig::Activation::kGelu);
  REQUIRE(model.KvHeads() == 12);
  REQUIRE(model.HeadDim() == 64);
  REQUIRE(model.Vocab() == 256);
  model.family = ModelConfig::Family::kLlama;
  model.d_model = 4096;
  REQUIRE(model.Ffn() == 11008);  // Llama 7B
  REQUIRE_FALSE(model.Tied());
  REQUIRE(model.ActivationKind() == ModelConfig::Activation::kSwiglu);
  REQUIRE(model.RopeTheta() == 10000);
}

TEST_CASE("blocks that predict further have no policy gradient", "[config][validate]") {
  const std::string policy = "train.loss=policy_gradient", family = "model.family=qwen3";
  Check({{{policy, family, "model.mtp.depth=1"}, "train.loss", "no policy gradient"},
         {{policy, family, "model.mtp.depth=0", "train.policy.kl=0.1"}, "", ""},
         {{"train.loss_weights=true", family, "model.mtp.depth=1"}, "", ""}});
}

}  // namespace
}  // namespace millrace
