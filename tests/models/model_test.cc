#include "models/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "tests/support/golden.h"
#include "tests/support/tiny_models.h"

namespace millrace {
namespace {

using test::TinyGpt2;
using test::TinyLlama;

const std::string kGolden = "tests/models/golden/";

TEST_CASE("a model's units and parameters print as golden text", "[models]") {
  ModelOptions gpt2 = TinyGpt2(3);
  gpt2.blocks_per_unit = 2;
  test::RequireGolden(kGolden + "gpt2_spec.txt", ToString(MakeModel(gpt2)->spec()));
  test::RequireGolden(kGolden + "llama_spec.txt", ToString(MakeModel(TinyLlama(2))->spec()));
}

// Of the last block.
AttentionShape& Attention(ModelOptions& o) { return *o.blocks.back().Find<AttentionShape>(); }
MlpShape& Mlp(ModelOptions& o) { return *o.blocks.back().Find<MlpShape>(); }

ModelSpec SpecOf(const ModelOptions& options) { return MakeModel(options)->spec(); }

std::vector<std::string> UnitNames(const ModelOptions& options) {
  std::vector<std::string> names;
  const ModelSpec spec = SpecOf(options);
  for (const UnitSpec& unit : spec.units) names.push_back(unit.name);
  return names;
}

TEST_CASE("blocks_per_unit merges consecutive blocks, the last unit taking what is left",
          "[models]") {
  ModelOptions options = GENERATE(TinyGpt2(5), TinyLlama(5));
  using Names = std::vector<std::string>;
  options.blocks_per_unit = 1;
  CHECK(UnitNames(options) == Names{"embed", "h.0", "h.1", "h.2", "h.3", "h.4", "head"});
  options.blocks_per_unit = 2;
  CHECK(UnitNames(options) == Names{"embed", "h.0-1", "h.2-3", "h.4", "head"});
  options.blocks_per_unit = 9;
  CHECK(UnitNames(options) == Names{"embed", "h.0-4", "head"});
}

TEST_CASE("a list gives each unit its blocks", "[models]") {
  ModelOptions options = GENERATE(TinyGpt2(5), TinyLlama(5));
  using Names = std::vector<std::string>;
  options.blocks_of_units = {1, 3, 1};
  CHECK(UnitNames(options) == Names{"embed", "h.0", "h.1-3", "h.4", "head"});
  options.blocks_of_units = {2, 3};
  CHECK(UnitNames(options) == Names{"embed", "h.0-1", "h.2-4", "head"});
}

// Names, shapes and order of parameters do not depend on the grouping:
// checkpoints and hashes rely on it.
TEST_CASE("grouping blocks leaves the parameters alone", "[models]") {
  ModelOptions options = GENERATE(TinyGpt2(5), TinyLlama(5));
  const auto params = [&](int64_t blocks_per_unit) {
    options.blocks_per_unit = blocks_per_unit;
    std::vector<ParamSpec> all;
    const ModelSpec spec = SpecOf(options);
    for (const UnitSpec& unit : spec.units)
      all.insert(all.end(), unit.params.begin(), unit.params.end());
    return all;
  };
  const std::vector<ParamSpec> separate = params(1);
  CHECK(params(2) == separate);
  CHECK(params(5) == separate);
  options.blocks_of_units = {1, 3, 1};
  CHECK(params(1) == separate);
}

TEST_CASE("decay, init and precision follow the kind of parameter", "[models]") {
  ModelOptions options = GENERATE(TinyGpt2(2), TinyLlama(2));
  options.tied = false;
  options.init_std = 0.03;
  const ModelSpec spec = SpecOf(options);
  for (const UnitSpec& unit : spec.units)
    for (const ParamSpec& param : unit.params) {
      CAPTURE(param.name);
      const bool matrix = param.dims.size() == 2;
      const bool norm = param.name.find("ln_") != std::string::npos ||
                        param.name.find("norm_") != std::string::npos;
      const bool bias = param.name.ends_with(".bias");
      const bool residual =
          param.name.ends_with("attn.proj.weight") || param.name.ends_with("mlp.down.weight");
      CHECK(param.decay == matrix);
      CHECK((param.kind == ParamKind::kNorm) == norm);
      CHECK(param.init == (matrix ? InitKind::kNormal : bias ? InitKind::kZeros : InitKind::kOnes));
      if (matrix) CHECK(param.init_std == Approx(residual ? 0.03 / std::sqrt(4.0) : 0.03));
      const bool vocabulary = param.dims[0] == options.vocab;
      CHECK(param.padded_rows == (vocabulary ? 64 : param.dims[0]));
    }
}

TEST_CASE("a Mamba-2 mixer: split by heads and groups, its exponents f32, without decay",
          "[models]") {
  ModelOptions options = TinyLlama();
  options.family = Name(ModelFamily::kNemotronH);
  options.tensor = 3;
  // z, x | B, C | dt: 60 each, 12 each, 6.
  options.blocks = {
      BlockShape{{MambaShape{.heads = 6, .head_dim = 10, .groups = 3, .state = 4, .conv = 4}}}};
  test::RequireGolden(kGolden + "mamba_spec.txt", ToString(SpecOf(options)));

  const auto emit = [&](int context) {
    const std::unique_ptr<Model> model = MakeModel(options);
    ForwardBuilder builder(model->spec(), {.batch = 2, .seq = 12}, DType::kF32, DType::kF32,
                           Mesh().With(Axis::kTensor, 3).With(Axis::kContext, context));
    model->EmitForward(builder, HeadMode::kTrainLoss);
  };
  CHECK_NOTHROW(emit(1));
  try {
    emit(2);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kConfig);
    CHECK_THAT(error.what(), Catch::Contains("h.0/mamba.conv") &&
                                 Catch::Contains("parallel.context must be 1, it is 2"));
  }
}

TEST_CASE("the vocabulary is stored in multiples of 64 rows", "[models]") {
  ModelOptions options = TinyLlama();
  for (const auto& [vocab, padded] :
       {std::pair<int64_t, int64_t>{1, 64}, {63, 64}, {64, 64}, {65, 128}, {50257, 50304}}) {
    options.vocab = vocab;
    CHECK(SpecOf(options).padded_vocab == padded);
    CHECK(SpecOf(options).units[0].params[0].padded_rows == padded);
  }
}

TEST_CASE("blocks may differ: each has the parameters of its own branches", "[models]") {
  const ModelSpec spec = SpecOf(test::Unequal(TinyLlama()));
  std::vector<std::string> found;
  for (const UnitSpec& unit : spec.units)
    for (const ParamSpec& param : unit.params)
      if (param.name.starts_with("h."))
        found.push_back(fmt::format("{} {}", param.name, fmt::join(param.dims, "x")));
  CHECK(found ==
        std::vector<std::string>{
            "h.0.norm_1.weight 10", "h.0.attn.qkv.weight 32x10", "h.0.attn.proj.weight 10x16",
            "h.0.norm_2.weight 10", "h.0.mlp.gate_up.weight 28x10", "h.0.mlp.down.weight 10x14",
            "h.1.norm_1.weight 10", "h.1.mlp.gate_up.weight 46x10", "h.1.mlp.down.weight 10x23",
            "h.2.norm_1.weight 10", "h.2.attn.qkv.weight 24x10", "h.2.attn.proj.weight 10x12",
            "h.3.norm_1.weight 10", "h.3.mlp.gate_up.weight 10x10", "h.3.mlp.down.weight 10x5",
            "h.3.norm_2.weight 10", "h.3.attn.qkv.weight 6x10", "h.3.attn.proj.weight 10x2"});
  // Six branches add to the residual stream.
  CHECK(spec.units[2].params.back().init_std == Approx(0.02 / std::sqrt(6.0)));
  CHECK_THAT(ToString(spec), Catch::Matchers::Contains("blocks 1 to 1: mlp 23 swiglu\n") &&
                                 Catch::Matchers::Contains("attention 2 heads (1 kv) of 6\n"));
}

TEST_CASE("a block that predicts further is a unit behind the head, with targets of its own",
          "[models]") {
  ModelOptions options = TinyLlama(2);
  options.mtp = {.depth = 1, .loss_scale = 0.3, .block = options.blocks.front()};
  const ModelSpec spec = SpecOf(options);
  CHECK(UnitNames(options) == std::vector<std::string>{"embed", "h.0", "h.1", "head", "mtp.1"});
  CHECK(spec.units.back().role == UnitRole::kBlock);
  std::vector<std::string> params;
  for (const ParamSpec& param : spec.units.back().params) params.push_back(param.name);
  CHECK(params == std::vector<std::string>{
                      "mtp.1.norm_e.weight", "mtp.1.norm_h.weight", "mtp.1.e_proj.weight",
                      "mtp.1.h_proj.weight", "mtp.1.norm_1.weight", "mtp.1.attn.qkv.weight",
                      "mtp.1.attn.proj.weight", "mtp.1.norm_2.weight", "mtp.1.mlp.gate_up.weight",
                      "mtp.1.mlp.down.weight", "mtp.1.norm_out.weight"});
  // Of 7 targets of a sequence 6 are left; the last is not the host's.
  REQUIRE(spec.losses.size() == 2);
  CHECK(spec.losses[1].weight == Approx(0.3 * 7 / 6).epsilon(1e-15));
  const std::vector<InputSource> sources = SourcesOf(spec.inputs, spec.losses);
  REQUIRE(sources.size() == 1);
  CHECK(sources[0] == InputSource{.name = "tokens", .extra = 2, .filled = 1});
}

TEST_CASE("a model's words are what they always were; its identity is canonical JSON", "[models]") {
  const ModelOptions llama = TinyLlama(2);
  // Checkpoints of older programs hold the hash of this very text.
  CHECK(Words(llama) ==
        "family=llama layers=2 d_model=10 heads=4 kv_heads=2 head_dim=4 ffn=14 vocab=37 seq_len=7 "
        "tied=false activation=swiglu norm_eps=1e-05 rope_theta=10000 rope_scaling=8/1/4/16");
  CHECK(Identity(llama) ==
        R"({"blocks":[{"branches":[{"head_dim":4,"heads":4,"kind":"attention","kv_heads":2},)"
        R"({"activation":"swiglu","kind":"mlp","width":14}],"count":2}],"d_model":10,)"
        R"("family":"llama","norm_eps":1e-05,"rope_scaling":{"factor":8.0,"high_freq_factor":4.0,)"
        R"("low_freq_factor":1.0,"original_max_position_embeddings":16},"rope_theta":10000.0,)"
        R"("seq_len":7,"tied":false,"vocab":37})");
  // Every change of the shape is another identity, and other words.
  const auto differs = [&](auto&& change) {
    ModelOptions other = llama;
    change(other);
    return Identity(other) != Identity(llama) && Words(other) != Words(llama);
  };
  CHECK(differs([](ModelOptions& o) { o.family = "gpt2"; }));
  CHECK(differs([](ModelOptions& o) { o.blocks.pop_back(); }));
  CHECK(differs(
      [](ModelOptions& o) { std::swap(o.blocks[0].branches[0], o.blocks[0].branches[1]); }));
  CHECK(differs([](ModelOptions& o) { o.blocks[1].branches.pop_back(); }));
  CHECK(differs([](ModelOptions& o) { ++Attention(o).heads; }));
  CHECK(differs([](ModelOptions& o) { ++Attention(o).kv_heads; }));
  CHECK(differs([](ModelOptions& o) { ++Attention(o).head_dim; }));
  CHECK(differs([](ModelOptions& o) { ++Mlp(o).width; }));
  CHECK(differs([](ModelOptions& o) { Mlp(o).activation = ActivationKind::kGelu; }));
  CHECK(differs([](ModelOptions& o) { ++o.vocab; }));
  CHECK(differs([](ModelOptions& o) { ++o.seq_len; }));
  CHECK(differs([](ModelOptions& o) { ++o.d_model; }));
  CHECK(differs([](ModelOptions& o) { o.tied = true; }));
  CHECK(differs([](ModelOptions& o) { o.norm_eps = 1e-6; }));
  CHECK(differs([](ModelOptions& o) { o.rope_theta = 1; }));
  CHECK(differs([](ModelOptions& o) { o.rope_scaling.factor = 2; }));
  // Options of attention are part of it; another kind of branch has all of its section in it.
  CHECK(differs([](ModelOptions& o) { Attention(o).rope = false; }));
  CHECK(differs([](ModelOptions& o) { Attention(o).qk_norm = true; }));
  CHECK(differs([](ModelOptions& o) { Attention(o).window = 3; }));
  const auto with = [&](const Branch& branch) {
    ModelOptions other = llama;
    other.blocks.back().branches = {branch};
    return Identity(other) + Words(other);
  };
  const auto section_differs = [&](auto section, auto&& change) {
    const std::string before = with(section);
    change(section);
    return with(section) != before;
  };
  const MoeShape moe{.aux_loss = AuxLossKind::kSwitch};
  CHECK(section_differs(moe, [](MoeShape& m) { ++m.experts; }));
  CHECK(section_differs(moe, [](MoeShape& m) { ++m.top_k; }));
  CHECK(section_differs(moe, [](MoeShape& m) { ++m.width; }));
  CHECK(section_differs(moe, [](MoeShape& m) { m.activation = ActivationKind::kRelu2; }));
  CHECK(section_differs(moe, [](MoeShape& m) { m.router = RouterKind::kSigmoid; }));
  CHECK(section_differs(moe, [](MoeShape& m) { m.bias = true; }));
  CHECK(section_differs(moe, [](MoeShape& m) { m.groups = 2; }));
  CHECK(section_differs(moe, [](MoeShape& m) { m.top_groups = 2; }));
  CHECK(section_differs(moe, [](MoeShape& m) { m.normalise = false; }));
  CHECK(section_differs(moe, [](MoeShape& m) { m.scaling = 2.5; }));
  CHECK(section_differs(moe, [](MoeShape& m) { m.shared_width = 8; }));
  CHECK(section_differs(moe, [](MoeShape& m) { m.aux_loss = AuxLossKind::kPooled; }));
  CHECK(section_differs(moe, [](MoeShape& m) { m.aux_coefficient = 1; }));
  CHECK(section_differs(moe, [](MoeShape& m) { m.bias_rate = 1; }));
  CHECK(section_differs(MambaShape{}, [](MambaShape& m) { ++m.heads; }));
  CHECK(section_differs(MambaShape{}, [](MambaShape& m) { ++m.head_dim; }));
  CHECK(section_differs(MambaShape{}, [](MambaShape& m) { ++m.groups; }));
  CHECK(section_differs(MambaShape{}, [](MambaShape& m) { ++m.state; }));
  CHECK(section_differs(MambaShape{}, [](MambaShape& m) { ++m.conv; }));
  CHECK(section_differs(MambaShape{}, [](MambaShape& m) { ++m.chunk; }));
  CHECK(section_differs(MambaShape{}, [](MambaShape& m) { m.dt_min = 0.001; }));
  CHECK(section_differs(MambaShape{}, [](MambaShape& m) { m.dt_max = 1; }));
  // A block that predicts further tokens is part of it; none is no word.
  const auto further = [](ModelOptions& o) { o.mtp = {1, 0.3, o.blocks.front()}; };
  CHECK(differs(further));
  CHECK(differs([&](ModelOptions& o) { further(o), o.mtp.loss_scale = 0.2; }));
  ModelOptions scaled = llama, other_block = llama, predicts = llama;
  further(predicts), further(scaled), further(other_block);
  scaled.mtp.loss_scale = 0.2;
  ++other_block.mtp.block.Find<MlpShape>()->width;
  CHECK(Identity(scaled) != Identity(predicts));
  CHECK(Words(scaled) != Words(predicts));
  CHECK(Identity(other_block) != Identity(predicts));
  CHECK(Words(other_block) != Words(predicts));
  // What is not in it.
  ModelOptions same = llama;
  same.init_std = 1;
  same.blocks_per_unit = 2;
  CHECK(Identity(same) == Identity(llama));
}

TEST_CASE("an impossible model is refused with key, value and what is allowed", "[models]") {
  using Catch::Matchers::Contains;
  const auto refusal = [](ModelOptions options, auto&& change) -> std::string {
    change(options);
    try {
      MakeModel(options);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kConfig);
      return error.what();
    }
    return "accepted";
  };
  CHECK(refusal(TinyGpt2(), [](ModelOptions&) {}) == "accepted");
  CHECK_THAT(refusal(TinyGpt2(), [](ModelOptions& o) { o.blocks.clear(); }),
             Contains("model.layers") && Contains("0"));
  CHECK_THAT(refusal(TinyGpt2(), [](ModelOptions& o) { o.blocks_per_unit = -1; }),
             Contains("sharding.blocks_per_unit") && Contains("-1"));
  CHECK_THAT(refusal(TinyGpt2(5),
                     [](ModelOptions& o) {
                       o.blocks_of_units = {2, 2};
                     }),
             Contains("sharding.blocks_per_unit lists 4") && Contains("model.layers is 5"));
  CHECK_THAT(refusal(TinyGpt2(5),
                     [](ModelOptions& o) {
                       o.blocks_of_units = {5, 0};
                     }),
             Contains("sharding.blocks_per_unit") && Contains("0 blocks"));
  CHECK_THAT(refusal(TinyLlama(), [](ModelOptions& o) { Attention(o).kv_heads = 3; }),
             Contains("model.kv_heads") && Contains("3") && Contains("4"));
  CHECK_THAT(refusal(TinyLlama(), [](ModelOptions& o) { Attention(o).head_dim = 5; }),
             Contains("model.head_dim") && Contains("5"));
  CHECK(refusal(TinyGpt2(), [](ModelOptions& o) { Attention(o).head_dim = 5; }) == "accepted");
  CHECK_THAT(
      refusal(TinyGpt2(), [](ModelOptions& o) { Mlp(o).activation = ActivationKind::kSwiglu; }),
      Contains("model.activation") && Contains("gpt2"));
  CHECK_THAT(
      refusal(TinyLlama(), [](ModelOptions& o) { Mlp(o).activation = ActivationKind::kGelu; }),
      Contains("model.activation") && Contains("llama"));
  CHECK_THAT(refusal(TinyLlama(), [](ModelOptions& o) { o.norm_eps = 0; }),
             Contains("model.norm_eps"));
  CHECK_THAT(refusal(TinyLlama(2), [](ModelOptions& o) { Attention(o).heads = 5; }),
             Contains("model.kv_heads is 2") && Contains("5"));
  CHECK_THAT(refusal(TinyLlama(2), [](ModelOptions& o) { o.blocks.back().branches.clear(); }),
             Contains("no branch"));
  const auto further = [](int64_t depth) {
    return [=](ModelOptions& o) { o.mtp = {depth, 0.1, o.blocks.front()}; };
  };
  CHECK(refusal(TinyLlama(), further(1)) == "accepted");
  CHECK(refusal(TinyLlama(), further(6)) == "accepted");
  CHECK_THAT(refusal(TinyLlama(), further(7)), Contains("model.mtp.depth is 7; 0 to 6"));
  CHECK_THAT(refusal(TinyGpt2(), further(1)), Contains("model.mtp.depth is 1; gpt2"));
  CHECK_THAT(
      refusal(TinyLlama(), [&](ModelOptions& o) { further(1)(o), o.mtp.block.branches.clear(); }),
      Contains("model.mtp is empty"));
  const auto last = [](Branch branch) {
    return [=](ModelOptions& o) { o.blocks.back().branches = {branch}; };
  };
  CHECK_THAT(refusal(TinyLlama(2), last(MoeShape{.experts = 6, .groups = 4})),
             Contains("model.moe.groups is 4") && Contains("6"));
  CHECK_THAT(refusal(TinyLlama(2), last(MoeShape{.experts = 6, .top_k = 3, .groups = 3})),
             Contains("model.moe.top_k is 3; at most 2"));
  CHECK_THAT(refusal(TinyLlama(2), last(MambaShape{.heads = 6, .groups = 4})),
             Contains("model.mamba.groups is 4") && Contains("6"));
  CHECK_THAT(refusal(TinyLlama(2), last(MambaShape{.dt_min = 0.5, .dt_max = 0.5})),
             Contains("model.mamba.dt_min is 0.5") && Contains("dt_max"));
  CHECK_THAT(refusal(TinyLlama(2),
                     [&](ModelOptions& o) {
                       last(MambaShape{.heads = 8, .groups = 1})(o);
                       o.tensor = 2;
                     }),
             Contains("parallel.tensor is 2") && Contains("model.mamba.groups, which is 1"));
  CHECK_THAT(refusal(TinyLlama(2), [](ModelOptions& o) { o.family = "mamba"; }),
             Contains("no model family mamba"));
}

}  // namespace
}  // namespace millrace
