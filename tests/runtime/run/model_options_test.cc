// A configuration's model section as the shape of a model: each key has a value of its own, so that
// one in another's place is seen.
#include "runtime/run/model_options.h"

#include <catch2/catch.hpp>

#include "kernels/ops/cuda_float16.h"
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

// Of a small model in fp16.
void PlanFp16(std::vector<std::string> sets, Backend backend, int world = 1,
              const PlanSelection& plans = {"train", "eval", "generate"}) {
  const std::vector<std::string> all = {"data.kind=synthetic", "precision.compute=fp16",
                                        "model.heads=4",       "model.vocab=64",
                                        "model.seq_len=16",    "model.d_model=32"};
  sets.insert(sets.begin(), all.begin(), all.end());
  Assemble(LoadConfig({}, sets, {.world = world}).config, world, {.backend = backend}, plans);
}

TEST_CASE("models without experts and mixers are planned in fp16 for GPUs, on any mesh",
          "[run][model][fp16]") {
  using Sets = std::vector<std::string>;
  const std::string family = GENERATE("gpt2", "llama", "qwen3");
  const Sets sums = GENERATE(
      Sets{}, Sets{"precision.grad_accumulate=fp16", "precision.grad_wire=fp16",
                   "precision.norms=compute", "optimizer.moments=bf16", "train.accumulate=2"});
  CAPTURE(family, sums);
  struct Case {
    int world;
    Sets mesh;
  };
  for (const Case& c : {Case{1, {}},
                        {4, {"parallel.replicate=2"}},
                        {2, {"parallel.tensor=2"}},
                        {4, {"parallel.context=2"}}}) {
    CAPTURE(c.world, c.mesh);
    Sets sets = c.mesh;
    sets.insert(sets.end(), {"model.family=" + family, "model.layers=2"});
    sets.insert(sets.end(), sums.begin(), sums.end());
    CHECK_NOTHROW(PlanFp16(sets, Backend::kCuda, c.world));
  }
}

TEST_CASE("what GPUs do not compute in fp16 is refused by its key, and what is allowed said",
          "[run][model][fp16]") {
  for (const auto& [sets, name] :
       {std::pair{std::vector<std::string>{"model.family=qwen3_moe", "model.layers=2",
                                           "model.moe.experts=4", "model.moe.top_k=2"},
                  "experts"},
        {{"model.family=nemotron_h", "model.pattern=M*", "model.mamba.heads=4",
          "model.mamba.head_dim=16"},
         "mixers"}}) {
    CAPTURE(name);
    CHECK_NOTHROW(PlanFp16(sets, Backend::kCpu));
    CHECK_THROWS_WITH(PlanFp16(sets, Backend::kCuda),
                      std::string("precision.compute is fp16, in which GPUs have no ") + name +
                          " yet, and the model has some (model.family or a pattern); bf16 and fp32 "
                          "are allowed, or execution.backend=cpu");
  }
  const PlanSelection caches = {"inference"};
  CHECK_NOTHROW(PlanFp16({"model.layers=2"}, Backend::kCpu, 1, caches));
  CHECK_THROWS_WITH(PlanFp16({"model.layers=2"}, Backend::kCuda, 1, caches),
                    "precision.compute is fp16; generating with caches on GPUs takes bf16 or fp32");
}

TEST_CASE("an op that CUDA does not have in f16 says which operand is", "[run][model][fp16]") {
  ExpertActivationOp<Shape> op;
  op.x = {DenseLayout(DType::kBF16, {4, 8}), true};
  CHECK(cuda::WhyNoFloat16(op) == "");
  op.x.layout.dtype = DType::kF16;
  CHECK(cuda::WhyNoFloat16(op) == "expert_activation: x is f16; f32 or bf16 is allowed on CUDA");
  ActivationOp<Shape> dense;
  dense.x = op.x;
  CHECK(cuda::WhyNoFloat16(dense) == "");
}

}  // namespace
}  // namespace millrace
