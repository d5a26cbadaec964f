#include "runtime/plan/graph/model_flops.h"

#include <catch2/catch.hpp>

#include "models/model.h"
#include "tests/support/tiny_models.h"

namespace millrace {
namespace {

TEST_CASE("GPT-2 124M: the published parameters and FLOPs per token", "[plan][flops]") {
  ModelOptions o;  // defaults: 12 layers, width 768
  o.vocab = 50257;
  const ModelSpec spec = MakeModel(o)->spec();
  const FlopsPerToken flops = TrainFlopsPerToken(test::ForwardOf(o));
  REQUIRE(Parameters(spec) == 124439808);  // openai-community/gpt2
  REQUIRE(MatmulParameters(spec) == 12 * 12 * 768 * 768 + 50257 * 768);
  REQUIRE(flops.causal == Approx(0.798e9).epsilon(2e-3));
  REQUIRE(flops.full == Approx(0.855e9).epsilon(2e-3));
}

TEST_CASE("Llama 3 8B: the published parameters and FLOPs per token", "[plan][flops]") {
  ModelOptions o;
  o.family = Name(ModelFamily::kLlama);
  o.d_model = 4096;
  o.blocks = EqualBlocks(32, {.heads = 32, .kv_heads = 8, .head_dim = 128},
                         {.width = 14336, .activation = ActivationKind::kSwiglu});
  o.vocab = 128256;
  o.seq_len = 8192;
  o.tied = false;
  o.blocks_per_unit = GENERATE(1, 2);  // how blocks are grouped does not matter
  const ModelSpec spec = MakeModel(o)->spec();
  const FlopsPerToken flops = TrainFlopsPerToken(test::ForwardOf(o));
  REQUIRE(Parameters(spec) == 8030261248);  // meta-llama/Meta-Llama-3-8B
  REQUIRE(flops.causal == Approx(51.47e9).epsilon(1e-3));
  REQUIRE(flops.full == Approx(57.91e9).epsilon(1e-3));
}

TEST_CASE("a tied table counts once; positions, biases, norms and padded rows never",
          "[plan][flops]") {
  ModelOptions o;
  o.d_model = 10;
  o.blocks = EqualBlocks(2, {.heads = 3, .kv_heads = 3, .head_dim = 4}, {.width = 22});
  o.vocab = 37;
  o.seq_len = 7;
  o.tied = GENERATE(true, false);
  const ModelSpec spec = MakeModel(o)->spec();
  const FlopsPerToken flops = TrainFlopsPerToken(test::ForwardOf(o));
  // qkv 36x10, out 10x12, up 22x10, down 10x22; head 37x10.
  REQUIRE(MatmulParameters(spec) == 2 * (360 + 120 + 220 + 220) + 370);
  // 6 (12) FLOPs for each of 2 layers, 12 attention columns, 7 positions.
  REQUIRE(flops.causal == 6.0 * 2210 + 6 * 2 * 12 * 7);
  REQUIRE(flops.full == 6.0 * 2210 + 12 * 2 * 12 * 7);
}

TEST_CASE("a window leaves the pairs within it", "[plan][flops]") {
  ModelOptions o = test::TinyLlama();
  const auto attended = [&](int64_t window) {
    for (BlockShape& block : o.blocks) block.Find<AttentionShape>()->window = window;
    const FlopsPerToken flops = TrainFlopsPerToken(test::ForwardOf(o));
    const double products = 6.0 * static_cast<double>(MatmulParameters(MakeModel(o)->spec()));
    CHECK(flops.full - products == Approx(2 * (flops.causal - products)));
    return flops.causal - products;
  };
  const double all = attended(0);
  CHECK(attended(o.seq_len) == all);
  CHECK(attended(o.seq_len + 1) == all);
  // Of T^2 / 2 pairs, w T - w^2 / 2.
  const double t = static_cast<double>(o.seq_len);
  CHECK(attended(3) == Approx(all * (3 * t - 4.5) / (t * t / 2)).epsilon(1e-12));
}

TEST_CASE("of experts a token counts those that compute it", "[plan][flops]") {
  ModelOptions o = test::TinyLlama();
  o.blocks = {BlockShape{{MoeShape{.experts = 5, .top_k = 2, .width = 7, .shared_width = 4}}},
              BlockShape{{MoeShape{
                  .experts = 6, .top_k = 3, .width = 9, .activation = ActivationKind::kRelu2}}}};
  // Router, experts, shared expert; the head. Width 10.
  const int64_t matmul = (50 + 2 * 3 * 70 + 3 * 40) + (60 + 3 * 2 * 90) + 370;
  REQUIRE(MatmulParameters(MakeModel(o)->spec()) == matmul);
  REQUIRE(TrainFlopsPerToken(test::ForwardOf(o)).causal == 6.0 * static_cast<double>(matmul));
}

TEST_CASE("of a block that predicts further, parameters count once, the head's FLOPs again",
          "[plan][flops]") {
  ModelOptions o = test::TinyLlama();
  const MoeShape moe{.experts = 5, .top_k = 2, .width = 7};
  o.blocks = {BlockShape{{moe}}};
  o.mtp = {.depth = 1, .loss_scale = 0.1, .block = BlockShape{{moe}}};
  // Router and experts, twice; the projections of embedding and trunk; the head. Width 10.
  const int64_t matmul = 2 * (50 + 2 * 3 * 70) + 2 * 100 + 370;
  REQUIRE(MatmulParameters(MakeModel(o)->spec()) == matmul);
  REQUIRE(TrainFlopsPerToken(test::ForwardOf(o)).causal == 6.0 * static_cast<double>(matmul + 370));
}

TEST_CASE("of a mixer, products, taps and the recurrence count", "[plan][flops]") {
  ModelOptions o = test::TinyLlama();
  o.blocks = {BlockShape{{MambaShape{.heads = 4, .head_dim = 3, .groups = 2, .state = 5}}}};
  // z, x, B, C, dt from width 10; 4 taps of x, B, C; back to width 10; the head.
  const int64_t matmul = (12 + 12 + 10 + 10 + 4) * 10 + (12 + 10 + 10) * 4 + 10 * 12 + 370;
  REQUIRE(MatmulParameters(MakeModel(o)->spec()) == matmul);
  const FlopsPerToken flops = TrainFlopsPerToken(test::ForwardOf(o));
  // 7 per element of the states, forward; twice that, backward (Megatron-LM's count).
  REQUIRE(flops.causal == 6.0 * static_cast<double>(matmul) + 3 * 7 * 12 * 5);
  REQUIRE(flops.full == flops.causal);
}

TEST_CASE("FLOPs are summed over blocks, which may differ", "[plan][flops]") {
  const ModelOptions o = test::Unequal(test::TinyLlama());
  // Block by block: qkv, proj, gate_up, down; the head.
  const int64_t matmul =
      (320 + 160 + 280 + 140) + (460 + 230) + (240 + 120) + (100 + 50 + 60 + 20) + 370;
  REQUIRE(MatmulParameters(MakeModel(o)->spec()) == matmul);
  // 16 + 12 + 2 attention columns, 7 positions.
  const FlopsPerToken flops = TrainFlopsPerToken(test::ForwardOf(o));
  REQUIRE(flops.full == 6.0 * static_cast<double>(matmul) + 12 * 30 * 7);
  REQUIRE(flops.causal == 6.0 * static_cast<double>(matmul) + 6 * 30 * 7);
}

}  // namespace
}  // namespace millrace
