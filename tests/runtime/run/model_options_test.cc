// A configuration's model section as the shape of a model: each key has a value of its own, so that
// one in another's place is seen.
#include "runtime/run/model_options.h"

#include <catch2/catch.hpp>

#include "runtime/config/load.h"
#include "runtime/run/assemble.h"

namespace millrace {
namespace {

ModelOptions OptionsOf(std::vector<std::string> sets) {
  sets.push_back("data.kind=synthetic");
  return ModelOptionsOf(LoadConfig({}, sets, {}).config);
}

const std::vector<std::string> kHybrid = {"model.family=nemotron_h",
                                          "model.pattern=M*-E",
                                          "model.d_model=40",
                                          "model.heads=6",
                                          "model.kv_heads=3",
                                          "model.head_dim=14",
                                          "model.ffn=50",
                                          "model.vocab=70",
                                          "model.seq_len=90",
                                          "model.tied=true",
                                          "model.activation=swiglu",
                                          "model.norm_eps=1e-4",
                                          "model.rope_theta=500",
                                          "model.init_std=0.5",
                                          "model.attention.rope=true",
                                          "model.attention.qk_norm=true",
                                          "model.attention.window=11",
                                          "model.moe.experts=12",
                                          "model.moe.top_k=3",
                                          "model.moe.ffn=22",
                                          "model.moe.router=softmax",
                                          "model.moe.bias=false",
                                          "model.moe.groups=4",
                                          "model.moe.top_groups=2",
                                          "model.moe.normalise=false",
                                          "model.moe.scaling=2.5",
                                          "model.moe.shared_ffn=26",
                                          "model.moe.aux_loss=pooled",
                                          "model.moe.aux_coefficient=0.25",
                                          "model.mamba.heads=10",
                                          "model.mamba.head_dim=7",
                                          "model.mamba.groups=5",
                                          "model.mamba.state=9",
                                          "model.mamba.chunk=13",
                                          "model.mamba.dt_min=0.125",
                                          "model.mamba.dt_max=0.75",
                                          "model.mtp.depth=1",
                                          "model.mtp.loss_scale=0.375",
                                          "model.mtp.pattern=-M"};

TEST_CASE("every key of model is in the shape of its blocks", "[run][model]") {
  const ModelOptions o = OptionsOf(kHybrid);
  const AttentionShape attention{
      .heads = 6, .kv_heads = 3, .head_dim = 14, .rope = true, .qk_norm = true, .window = 11};
  const MlpShape mlp{.width = 50, .activation = ActivationKind::kSwiglu};
  const MoeShape moe{.experts = 12,
                     .top_k = 3,
                     .width = 22,
                     .activation = ActivationKind::kSwiglu,
                     .router = RouterKind::kSoftmax,
                     .bias = false,
                     .groups = 4,
                     .top_groups = 2,
                     .normalise = false,
                     .scaling = 2.5,
                     .shared_width = 26,
                     .aux_loss = AuxLossKind::kPooled,
                     .aux_coefficient = 0.25};
  const MambaShape mamba{.heads = 10,
                         .head_dim = 7,
                         .groups = 5,
                         .state = 9,
                         .chunk = 13,
                         .dt_min = 0.125,
                         .dt_max = 0.75};
  CHECK(o.blocks == std::vector<BlockShape>{{{mamba}}, {{attention}}, {{mlp}}, {{moe}}});
  CHECK(o.mtp == MtpShape{.depth = 1, .loss_scale = 0.375, .block = {{mlp, mamba}}});
  CHECK(o.family == "nemotron_h");
  CHECK(o.d_model == 40);
  CHECK(o.vocab == 70);
  CHECK(o.seq_len == 90);
  CHECK(o.tied);
  CHECK(o.norm_eps == 1e-4);
  CHECK(o.rope_theta == 500);
  CHECK(o.init_std == 0.5);
}

TEST_CASE("null is what the family has", "[run][model]") {
  const ModelOptions hybrid = OptionsOf({"model.family=nemotron_h", "model.pattern=*E"});
  CHECK_FALSE(hybrid.blocks[0].Find<AttentionShape>()->rope);
  CHECK_FALSE(hybrid.blocks[0].Find<AttentionShape>()->qk_norm);
  CHECK(hybrid.blocks[0].Find<AttentionShape>()->window == 0);
  const MoeShape& moe = *hybrid.blocks[1].Find<MoeShape>();
  CHECK(moe.router == RouterKind::kSigmoid);
  CHECK(moe.bias);
  CHECK(moe.bias_rate == 0.001);
  CHECK(moe.activation == ActivationKind::kRelu2);
  CHECK(moe.shared_width == 0);
  CHECK(moe.aux_coefficient == 0);  // idle: no part of a model's identity
  const ModelOptions qwen = OptionsOf({"model.family=qwen3_moe", "model.pattern=E-"});
  REQUIRE(qwen.blocks[0].branches.size() == 2);
  CHECK(qwen.blocks[0].Find<AttentionShape>()->qk_norm);
  CHECK(qwen.blocks[0].Find<AttentionShape>()->rope);
  CHECK(qwen.blocks[0].Find<MoeShape>()->router == RouterKind::kSoftmax);
  CHECK(qwen.blocks[0].Find<MoeShape>()->bias_rate == 0);
  CHECK(qwen.blocks[1].Find<MlpShape>()->activation == ActivationKind::kSwiglu);
}

TEST_CASE("heads too wide for whose kernels run them are refused by the keys that make them",
          "[run][model]") {
  const auto plan = [](const std::vector<std::string>& width, Backend backend) {
    std::vector<std::string> sets = {"data.kind=synthetic", "model.family=llama",
                                     "model.layers=1",      "model.heads=1",
                                     "model.vocab=64",      "model.seq_len=8"};
    sets.insert(sets.end(), width.begin(), width.end());
    Assemble(LoadConfig({}, sets, {}).config, 1, {.backend = backend}, {"train"});
  };
  CHECK_NOTHROW(plan({"model.head_dim=512"}, Backend::kCpu));
  CHECK_NOTHROW(plan({"model.head_dim=256"}, Backend::kCuda));
  CHECK_THROWS_WITH(plan({"model.head_dim=514"}, Backend::kCpu),
                    "model.head_dim is 514; at most 512 on CPUs");
  CHECK_THROWS_WITH(plan({"model.head_dim=258"}, Backend::kCuda),
                    "model.head_dim is 258; at most 256 on GPUs");
  CHECK_THROWS_WITH(plan({"model.d_model=516"}, Backend::kCpu),
                    "model.d_model / model.heads is 516; at most 512 on CPUs");
}

TEST_CASE("GPUs refuse fp16 by its key, and say what they compute in", "[run][model]") {
  const auto plan = [](const std::string& compute, Backend backend) {
    const std::vector<std::string> sets = {"data.kind=synthetic", "model.family=gpt2",
                                           "model.layers=1",      "model.heads=1",
                                           "model.vocab=64",      "model.seq_len=8",
                                           "model.d_model=64",    "precision.compute=" + compute};
    Assemble(LoadConfig({}, sets, {}).config, 1, {.backend = backend}, {"train"});
  };
  CHECK_NOTHROW(plan("fp16", Backend::kCpu));
  CHECK_NOTHROW(plan("bf16", Backend::kCuda));
  CHECK_THROWS_WITH(plan("fp16", Backend::kCuda),
                    "precision.compute is fp16, which GPUs do not compute in yet; bf16 and fp32 "
                    "are allowed, or execution.backend=cpu");
}

}  // namespace
}  // namespace millrace
