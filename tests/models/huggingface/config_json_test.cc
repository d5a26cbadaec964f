#include "models/huggingface/config_json.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config/load.h"
#include "tests/runtime/data/error_matchers.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

const std::vector<std::string> kModels = {
    "gpt2_tiny",      "llama_tiny",      "llama_tied_tiny",       "qwen3_tiny",
    "qwen3_moe_tiny", "nemotron_h_tiny", "nemotron_h_mamba_tiny", "nemotron_h_moe_tiny"};

std::string ReadText(const std::string& path) {
  std::ifstream in(path);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

Json GoldenConfigJson(const std::string& model, bool transformers4) {
  const std::string folder = "tests/golden/" + model;
  return Json::parse(
      ReadText(folder + (transformers4 ? "/config_transformers4.json" : "/hf/config.json")));
}

ModelConfig Read(const Json& config) { return ModelFromHuggingFace(config.dump(2), "config.json"); }

// The keys of golden.json, which the script that made the data wrote next to it;
// resolved as Read resolves.
ModelConfig GoldenModel(const std::string& model) {
  const Json golden = Json::parse(ReadText("tests/golden/" + model + "/golden.json"));
  const std::vector<ConfigText> texts = {
      {"golden.json", Json{{"model", golden["model"]}, {"data", {{"kind", "synthetic"}}}}.dump()}};
  ModelConfig m = LoadConfigTexts(texts, {}, {}).config.model;
  m.kv_heads = m.KvHeads();
  m.head_dim = m.HeadDim();
  m.activation = m.ActivationKind();
  return m;
}

TEST_CASE("transformers 4 and 5 write the same model in two forms, and both are read",
          "[huggingface]") {
  const std::string model = GENERATE(from_range(kModels));
  const bool transformers4 = GENERATE(true, false);
  if (transformers4 && model.starts_with("nemotron_h")) return;  // which does not know it
  CAPTURE(model, transformers4);
  ModelConfig want = GoldenModel(model);
  if (model == "llama_tiny")
    want.seq_len = 1024;  // the file's max_position_embeddings; the data has sequences of 17
  want.moe.bias_rate = MoeConfig{}.bias_rate;  // no file says how a bias is trained
  CHECK(Read(GoldenConfigJson(model, transformers4)) == want);
}

TEST_CASE("what is exported reads back as the same model", "[huggingface]") {
  const std::string model = GENERATE(from_range(kModels));
  ModelConfig m = GoldenModel(model);
  m.init_std = GENERATE(0.0, 0.0317);
  m.moe.bias_rate = MoeConfig{}.bias_rate;  // which is not exported
  m.norm_eps = 3e-7;
  m.tied = !m.Tied();
  if (m.rope_theta) m.rope_theta = 500000.5;
  CHECK(ModelFromHuggingFace(HuggingFaceConfigText(m), "config.json") == m);
  CHECK(Json::parse(HuggingFaceGenerationText())["eos_token_id"].is_null());
}

// gpt2's config.json as it was published in 2019, but for the dropout.
const char* const kPublishedGpt2 = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.0, "bos_token_id": 50256,
  "embd_pdrop": 0.0, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
  "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.0, "summary_activation": null,
  "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
  "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257})";

TEST_CASE("an old gpt2 file leaves fields out, and their defaults are transformers'",
          "[huggingface]") {
  const ModelConfig m = ModelFromHuggingFace(kPublishedGpt2, "config.json");
  CHECK(m.layers == 12);
  CHECK(m.ffn == 3072);
  CHECK(m.head_dim == 64);
  CHECK(m.tied == true);
  CHECK(m.vocab == 50257);
  CHECK(m.seq_len == 1024);
  CHECK_FALSE(m.rope_theta.has_value());
}

TEST_CASE("an old llama file leaves fields out, and their defaults are transformers'",
          "[huggingface]") {
  const ModelConfig m = Read({{"model_type", "llama"},
                              {"hidden_size", 64},
                              {"num_hidden_layers", 3},
                              {"num_attention_heads", 4},
                              {"intermediate_size", 96},
                              {"vocab_size", 300},
                              {"max_position_embeddings", 32}});
  CHECK(m.kv_heads == 4);
  CHECK(m.head_dim == 16);
  CHECK(m.tied == false);
  CHECK(m.norm_eps == 1e-6);
  CHECK(m.rope_theta == 10000);
  CHECK_FALSE(m.rope_scaling.has_value());
}

TEST_CASE("llama 3.1's scaling is read under the older name of its type too", "[huggingface]") {
  Json config = GoldenConfigJson("llama_tiny", true);
  const ModelConfig want = Read(config);
  REQUIRE(want.rope_scaling.has_value());
  config["rope_scaling"]["type"] = config["rope_scaling"]["rope_type"];
  CHECK(Read(config) == want);
  config["rope_scaling"].erase("rope_type");
  CHECK(Read(config) == want);
  config["rope_parameters"] =
      GoldenConfigJson("llama_tiny", false)["rope_parameters"];  // both forms in one file
  CHECK(Read(config) == want);
}

// config.json of NVIDIA-Nemotron-3-Nano-30B-A3B as it is published.
const char* const kPublishedHybrid = R"({
  "architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "auto_map": {
    "AutoConfig": "configuration_nemotron_h.NemotronHConfig",
    "AutoModel": "modeling_nemotron_h.NemotronHForCausalLM",
    "AutoModelForCausalLM": "modeling_nemotron_h.NemotronHForCausalLM"
  },
  "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 2, "expand": 2, "head_dim": 128, "hidden_dropout": 0.0,
  "hidden_size": 2688, "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
  "initializer_range": 0.02, "intermediate_size": 1856, "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64,
  "mamba_hidden_act": "silu", "mamba_num_heads": 64, "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32",
  "max_position_embeddings": 262144, "mlp_bias": false, "mlp_hidden_act": "relu2", "model_type": "nemotron_h",
  "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8, "n_routed_experts": 128,
  "n_shared_experts": 1, "norm_eps": 1e-05, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts_per_tok": 6,
  "num_hidden_layers": 52, "num_key_value_heads": 2, "num_logits_to_keep": 1, "pad_token_id": 0, "partial_rotary_factor": 1.0,
  "rescale_prenorm_residual": true, "residual_in_fp32": false, "rope_theta": 10000, "routed_scaling_factor": 2.5,
  "sliding_window": null, "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_floor": 0.0001, "time_step_max": 0.1,
  "time_step_min": 0.001, "topk_group": 1, "torch_dtype": "bfloat16", "transformers_version": "4.55.4", "use_bias": false,
  "use_cache": true, "use_conv_bias": true, "use_mamba_kernels": true, "vocab_size": 131072})";

// With `from`, which it has once, made `to`.
std::string Hybrid(const std::string& from, const std::string& to) {
  std::string text = kPublishedHybrid;
  const size_t at = text.find(from);
  REQUIRE(at != text.npos);
  REQUIRE(text.find(from, at + 1) == text.npos);
  return text.replace(at, from.size(), to);
}

TEST_CASE("a published hybrid is read, and comes out as it went in", "[huggingface]") {
  const ModelConfig m = ModelFromHuggingFace(kPublishedHybrid, "config.json");
  CHECK(m.pattern == "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME");
  CHECK(m.kv_heads == 2);
  CHECK(m.norm_eps == 1e-5);
  CHECK_FALSE(m.Rope());
  CHECK(m.mamba == MambaConfig{.heads = 64, .head_dim = 64, .groups = 8, .state = 128});
  CHECK(m.moe ==
        MoeConfig{.experts = 128, .top_k = 6, .ffn = 1856, .scaling = 2.5, .shared_ffn = 3712});
  CHECK(ModelFromHuggingFace(HuggingFaceConfigText(m), "config.json") == m);
  ModelConfig grouped = m;
  grouped.moe.groups = 8;
  grouped.moe.top_groups = 4;
  grouped.moe.normalise = false;
  grouped.moe.shared_ffn = {};
  CHECK(ModelFromHuggingFace(HuggingFaceConfigText(grouped), "config.json") == grouped);
}

TEST_CASE("a hybrid's blocks are read in both spellings", "[huggingface]") {
  const std::string pattern = R"("MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME")",
                    layers = R"("num_hidden_layers": 52, )";
  std::string published = Hybrid(pattern, R"("MEM*-E")");
  published.erase(published.find(layers), layers.size());
  std::string renamed = Hybrid(
      R"("hybrid_override_pattern": )" + pattern,
      R"("layers_block_type": ["linear_attention", "moe", "mamba", "full_attention", "mlp", "moe"])");
  renamed.erase(renamed.find(layers), layers.size());
  const ModelConfig m = ModelFromHuggingFace(renamed, "config.json");
  CHECK(m.pattern == "MEM*-E");
  CHECK(m == ModelFromHuggingFace(published, "config.json"));
  CHECK(ModelFromHuggingFace(HuggingFaceConfigText(m), "config.json") == m);
}

TEST_CASE("limits of time steps are read as they are published, and written for transformers",
          "[huggingface]") {
  // Those of initial steps (time_step_min and the like) limit none.
  const ModelConfig m = ModelFromHuggingFace(kPublishedHybrid, "config.json");
  const std::string floor = R"("time_step_floor": 0.0001,)";
  const auto [limits, least, most] = GENERATE(table<std::string, double, std::optional<double>>({
      {"[0.0, Infinity]", 0.0, std::nullopt},
      {"[0.001, Infinity]", 0.001, std::nullopt},
      {"[0.001, 0.1]", 0.001, 0.1},
  }));
  CAPTURE(limits);
  const ModelConfig limited = ModelFromHuggingFace(
      Hybrid(floor, floor + R"("time_step_limit": )" + limits + ","), "config.json");
  CHECK(limited.mamba.dt_min == least);
  CHECK(limited.mamba.dt_max == most);
  CHECK((limited == m) == (limits == "[0.0, Infinity]"));
  const std::string text = HuggingFaceConfigText(limited);
  CHECK(ModelFromHuggingFace(text, "config.json") == limited);
  const Json written = Json::parse(text);
  CHECK(written["time_step_limit"][0] == least);
  CHECK(written["time_step_min"] == least);  // 5.23 clamps to this, and reads no limits
}

TEST_CASE("code beside a hybrid is left alone if it is the published", "[huggingface]") {
  const ModelConfig m = ModelFromHuggingFace(kPublishedHybrid, "config.json");
  const std::string name = R"("AutoConfig": ")";
  CHECK(ModelFromHuggingFace(Hybrid(name, name + "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16--"),
                             "config.json") == m);
  const std::string other = R"("AutoModel": "modeling_mine.NemotronHForCausalLM")";
  RequireError(ErrorCode::kData, {"auto_map.AutoModel = \"modeling_mine.", "not run"}, [&] {
    ModelFromHuggingFace(
        Hybrid(R"("AutoModel": "modeling_nemotron_h.NemotronHForCausalLM")", other), "config.json");
  });
}

TEST_CASE("a mixture of experts is read in both spellings, with its dense layers",
          "[huggingface]") {
  Json config = GoldenConfigJson("qwen3_tiny", false);
  config["model_type"] = "qwen3_moe";
  config["architectures"] = Json::array({"Qwen3MoeForCausalLM"});
  config["num_hidden_layers"] = 4;
  config["layer_types"] =
      Json::array({"full_attention", "full_attention", "full_attention", "full_attention"});
  config["num_experts"] = 6;
  config["num_experts_per_tok"] = 3;
  config["moe_intermediate_size"] = 24;
  config["norm_topk_prob"] = true;
  const ModelConfig m = Read(config);
  CHECK_FALSE(m.pattern.has_value());
  CHECK(m.Blocks() == "EEEE");
  CHECK(m.moe == MoeConfig{.experts = 6, .top_k = 3, .ffn = 24});
  CHECK(ModelFromHuggingFace(HuggingFaceConfigText(m), "config.json") == m);
  Json renamed = config;
  renamed.erase("num_experts");
  renamed["num_local_experts"] = 6;
  CHECK(Read(renamed) == m);
  Json plain = config;
  plain["norm_topk_prob"] = false;
  CHECK_FALSE(Read(plain).moe.normalise);
  CHECK(ModelFromHuggingFace(HuggingFaceConfigText(Read(plain)), "config.json") == Read(plain));
  config["mlp_only_layers"] = {1};
  config["decoder_sparse_step"] = 2;
  const ModelConfig dense = Read(config);
  CHECK(dense.Blocks() == "---E");
  CHECK(ModelFromHuggingFace(HuggingFaceConfigText(dense), "config.json") == dense);
}

TEST_CASE("a sliding window is that of all layers, or an error", "[huggingface]") {
  Json config = GoldenConfigJson("qwen3_tiny", true);
  config["sliding_window"] = 8;
  CHECK_FALSE(Read(config).attention.window.has_value());  // use_sliding_window is false
  config["use_sliding_window"] = true;
  CHECK_THROWS_WITH(Read(config), Catch::Matchers::Contains("layer_types") &&
                                      Catch::Matchers::Contains("sliding_attention"));
  config["layer_types"] = Json::array({"sliding_attention", "sliding_attention"});
  const ModelConfig m = Read(config);
  CHECK(m.attention.window == 8);
  CHECK(ModelFromHuggingFace(HuggingFaceConfigText(m), "config.json") == m);
  config["layer_types"] = nullptr;
  CHECK_THROWS_WITH(Read(config), Catch::Matchers::Contains("max_window_layers"));
  config.erase("layer_types");
  CHECK_THROWS_WITH(Read(config), Catch::Matchers::Contains("max_window_layers"));
  config["max_window_layers"] = 0;
  CHECK(Read(config).attention.window == 8);
  config["sliding_window"] = nullptr;  // transformers: then no layer slides
  CHECK_FALSE(Read(config).attention.window.has_value());
}

TEST_CASE("all layers with experts slide, or none: their file does not say which",
          "[huggingface]") {
  Json config = GoldenConfigJson("qwen3_moe_tiny", false);
  config["sliding_window"] = 8;
  CHECK_FALSE(Read(config).attention.window.has_value());
  config["use_sliding_window"] = true;
  CHECK(Read(config).attention.window == 8);
  config["max_window_layers"] = 48;  // as in published files, and not read
  CHECK(Read(config).attention.window == 8);
}

TEST_CASE("what a family's file cannot say is not written", "[huggingface]") {
  const auto refusal = [](const std::string& model, auto&& change) -> std::string {
    ModelConfig m = GoldenModel(model);
    change(m);
    try {
      HuggingFaceConfigText(m);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kConfig);
      return error.what();
    }
    return "written";
  };
  using Catch::Matchers::Contains;
  CHECK(refusal("nemotron_h_tiny", [](ModelConfig&) {}) == "written");
  CHECK_THAT(refusal("nemotron_h_tiny", [](ModelConfig& m) { m.attention.rope = true; }),
             Contains("model.attention.rope = true"));
  CHECK_THAT(refusal("llama_tiny", [](ModelConfig& m) { m.attention.qk_norm = true; }),
             Contains("model.attention.qk_norm = true"));
  CHECK_THAT(refusal("llama_tiny", [](ModelConfig& m) { m.attention.window = 5; }),
             Contains("model.attention.window = 5"));
  CHECK_THAT(
      refusal("nemotron_h_tiny", [](ModelConfig& m) { m.activation = ActivationKind::kGelu; }),
      Contains("model.activation = gelu"));
  CHECK_THAT(refusal("qwen3_moe_tiny", [](ModelConfig& m) { m.moe.gate = GateKind::kBalanced; }),
             Contains("model.moe.gate = balanced"));
  CHECK_THAT(
      refusal("qwen3_moe_tiny", [](ModelConfig& m) { m.mtp = {.depth = 1, .pattern = "-"}; }),
      Contains("model.mtp.pattern = -"));
}

struct Refused {
  std::string model, field;  // a JSON pointer
  Json value;
  std::vector<std::string> says;
};

TEST_CASE("a field that is not honoured is an error that names it and its value", "[huggingface]") {
  const auto [model, field, value, says] = GENERATE(values<Refused>({
      {"gpt2_tiny", "/model_type", "mistral", {"model_type = \"mistral\"", "gpt2, llama, qwen3"}},
      {"gpt2_tiny",
       "/architectures",
       Json::array({"GPT2ForSequenceClassification"}),
       {"architectures", "GPT2LMHeadModel"}},
      {"gpt2_tiny", "/attn_pdrop", 0.1, {"attn_pdrop = 0.1", "no dropout"}},
      {"gpt2_tiny", "/resid_pdrop", 0.1, {"resid_pdrop = 0.1", "no dropout"}},
      {"gpt2_tiny", "/embd_pdrop", 0.1, {"embd_pdrop = 0.1", "no dropout"}},
      {"gpt2_tiny", "/activation_function", "gelu", {"activation_function = \"gelu\"", "gelu_new"}},
      {"gpt2_tiny", "/scale_attn_weights", false, {"scale_attn_weights = false"}},
      {"gpt2_tiny",
       "/scale_attn_by_inverse_layer_idx",
       true,
       {"scale_attn_by_inverse_layer_idx = true"}},
      {"gpt2_tiny", "/reorder_and_upcast_attn", true, {"reorder_and_upcast_attn = true"}},
      {"gpt2_tiny", "/add_cross_attention", true, {"add_cross_attention = true"}},
      {"gpt2_tiny", "/n_ctx", 512, {"n_ctx = 512", "n_positions, which is 17"}},
      {"gpt2_tiny", "/n_embd", 37, {"n_head, 3, must divide n_embd, 37"}},
      {"gpt2_tiny", "/n_layer", 0, {"n_layer = 0", "whole number"}},
      {"gpt2_tiny", "/n_layer", 2.5, {"n_layer = 2.5", "whole number"}},
      {"gpt2_tiny", "/n_layer", 20000, {"model.layers 20000", "from 1 to 10000"}},
      {"gpt2_tiny", "/n_layer", nullptr, {"n_layer is missing"}},
      {"gpt2_tiny",
       "/tie_word_embeddings",
       "yes",
       {"tie_word_embeddings = \"yes\"", "true or false"}},
      {"gpt2_tiny", "/layer_norm_epsilon", 0, {"layer_norm_epsilon = 0", "positive"}},
      {"gpt2_tiny", "/quantization_config", {{"bits", 4}}, {"quantization_config = {\"bits\":4}"}},
      {"gpt2_tiny", "/auto_map", {{"AutoModel", "code.Model"}}, {"auto_map", "not run"}},
      {"gpt2_tiny", "/dtype", "float8_e4m3fn", {"dtype = \"float8_e4m3fn\""}},
      {"gpt2_tiny", "/rope_theta", 10000, {"rope_theta = 10000", "not a field that we know"}},
      {"gpt2_tiny", "/logit_softcap", 30, {"logit_softcap = 30", "not a field that we know"}},
      {"llama_tiny", "/hidden_act", "gelu", {"hidden_act = \"gelu\"", "silu"}},
      {"llama_tiny", "/attention_bias", true, {"attention_bias = true", "no biases"}},
      {"llama_tiny", "/mlp_bias", true, {"mlp_bias = true", "no biases"}},
      {"llama_tiny", "/attention_dropout", 0.05, {"attention_dropout = 0.05", "no dropout"}},
      {"llama_tiny", "/pretraining_tp", 2, {"pretraining_tp = 2"}},
      {"llama_tiny", "/sliding_window", 4096, {"sliding_window = 4096"}},
      {"llama_tiny", "/head_dim", 7, {"7 elements", "even"}},
      {"llama_tiny",
       "/num_key_value_heads",
       4,
       {"num_key_value_heads, 4, must divide num_attention_heads, 6"}},
      {"llama_tiny", "/partial_rotary_factor", 0.5, {"partial_rotary_factor = 0.5"}},
      {"llama_tiny",
       "/rope_parameters/rope_type",
       "yarn",
       {"rope_parameters.rope_type = \"yarn\"", "default and llama3"}},
      {"llama_tiny",
       "/rope_parameters/partial_rotary_factor",
       0.25,
       {"rope_parameters.partial_rotary_factor = 0.25"}},
      {"llama_tiny",
       "/rope_parameters/attention_factor",
       2,
       {"rope_parameters.attention_factor = 2"}},
      {"llama_tiny",
       "/rope_parameters/low_freq_factor",
       4,
       {"rope_parameters.low_freq_factor = 4", "less than"}},
      {"llama_tiny",
       "/rope_parameters/original_max_position_embeddings",
       0.5,
       {"original_max_position_embeddings = 0.5", "whole number"}},
      {"llama_tiny", "/rope_theta", 500000, {"rope_parameters.rope_theta = 10000", "differs"}},
      {"llama_tiny",
       "/rope_scaling",
       {{"rope_type", "default"}},
       {"rope_scaling and rope_parameters disagree"}},
      {"qwen3_tiny", "/attention_bias", true, {"attention_bias = true", "no biases"}},
      {"qwen3_tiny", "/hidden_act", "gelu", {"hidden_act = \"gelu\"", "silu"}},
      {"qwen3_tiny", "/architectures", Json::array({"Qwen3MoeForCausalLM"}), {"Qwen3ForCausalLM"}},
      {"qwen3_tiny", "/layer_types", Json::array({"full_attention"}), {"the model has 2 layers"}},
      {"qwen3_moe_tiny",
       "/architectures",
       Json::array({"Qwen3ForCausalLM"}),
       {"Qwen3MoeForCausalLM"}},
      {"qwen3_moe_tiny", "/num_local_experts", 3000, {"model.moe.experts 3000", "1 to 1024"}},
      {"qwen3_moe_tiny", "/num_experts", 4, {"num_experts and num_local_experts disagree"}},
      {"qwen3_moe_tiny", "/mlp_only_layers", "0", {"mlp_only_layers = \"0\"", "from 0 to 1"}},
      {"qwen3_moe_tiny", "/mlp_only_layers", Json::array({"0"}), {"mlp_only_layers = [\"0\"]"}},
      {"qwen3_moe_tiny", "/mlp_only_layers", Json::array({2}), {"mlp_only_layers = [2]"}},
      {"qwen3_moe_tiny", "/mlp_only_layers", Json::array({-1}), {"mlp_only_layers = [-1]"}},
      {"nemotron_h_tiny", "/mlp_hidden_act", "silu", {"mlp_hidden_act = \"silu\"", "relu2"}},
      {"nemotron_h_tiny", "/use_bias", true, {"use_bias = true", "no biases"}},
      {"nemotron_h_tiny", "/use_conv_bias", false, {"use_conv_bias = false", "has a bias"}},
      {"nemotron_h_tiny", "/conv_kernel", 3, {"conv_kernel = 3", "4 taps"}},
      {"nemotron_h_tiny", "/hidden_dropout", 0.1, {"hidden_dropout = 0.1", "no dropout"}},
      {"nemotron_h_tiny", "/residual_in_fp32", true, {"residual_in_fp32 = true"}},
      {"nemotron_h_tiny", "/moe_latent_size", 8, {"moe_latent_size = 8", "whole width"}},
      {"nemotron_h_tiny", "/num_nextn_predict_layers", -1, {"num_nextn_predict_layers = -1"}},
      {"nemotron_h_tiny", "/sliding_window", 8, {"sliding_window = 8"}},
      {"nemotron_h_tiny", "/num_hidden_layers", 4, {"num_hidden_layers = 4", "has 5 blocks"}},
      {"nemotron_h_tiny", "/layers_block_type", "mlp", {"layers_block_type = \"mlp\"", "a list"}},
      {"nemotron_h_tiny", "/layers_block_type/1", "conv", {"layers_block_type = \"conv\""}},
      {"nemotron_h_tiny", "/hybrid_override_pattern", 7, {"hybrid_override_pattern = 7"}},
      {"nemotron_h_tiny", "/hybrid_override_pattern", "*--*", {"layers_block_type disagree"}},
      {"nemotron_h_tiny", "/attention_head_dim", 8, {"attention_head_dim, 8, and head_dim, 7"}},
      {"nemotron_h_tiny", "/rms_norm_eps", 1e-3, {"1e-05, and rms_norm_eps, 0.001, disagree"}},
      {"nemotron_h_tiny", "/norm_eps", 1e-6, {"1e-05, and norm_eps, 1e-06, disagree"}},
      {"nemotron_h_tiny", "/auto_map", "code", {"auto_map = \"code\"", "an object"}},
      {"nemotron_h_tiny", "/auto_map", {{"AutoModel", 7}}, {"auto_map.AutoModel = 7", "not run"}},
      {"nemotron_h_tiny", "/rope_scaling", {{"type", "yarn"}}, {"rope_scaling", "not a field"}},
      {"llama_tiny", "/auto_map", {{"AutoModel", "code.Model"}}, {"auto_map", "not run"}},
      {"nemotron_h_mamba_tiny", "/time_step_limit", Json::array({0.1}), {"a pair of numbers"}},
  }));
  CAPTURE(model, field);
  Json config = GoldenConfigJson(model, false);
  REQUIRE_NOTHROW(Read(config));
  config[Json::json_pointer(field)] = value;
  std::vector<std::string> parts = says;
  parts.push_back("config.json");
  RequireError(ErrorCode::kData, parts, [&] { Read(config); });
}

TEST_CASE("llama3 scaling needs all of its fields", "[huggingface]") {
  const std::string field =
      GENERATE("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings");
  Json config = GoldenConfigJson("llama_tiny", true);
  config["rope_scaling"].erase(field);
  RequireError(ErrorCode::kData, {"rope_scaling." + field + " is missing"}, [&] { Read(config); });
}

TEST_CASE("everything wrong with a file is said at once, with its line", "[huggingface]") {
  const std::string text =
      "{\n\"model_type\": \"llama\",\n\"hidden_act\": \"relu\",\n\"mystery\": [1, "
      "2],\n\"num_hidden_layers\": -1,\n\"attention_bias\": true}";
  RequireError(
      ErrorCode::kData,
      {"line 3: hidden_act = \"relu\"", "line 4: mystery = [1,2]", "line 5: num_hidden_layers = -1",
       "line 6: attention_bias = true", "hidden_size is missing", "vocab_size is missing"},
      [&] { ModelFromHuggingFace(text, "config.json"); });
  RequireError(ErrorCode::kData, {"folder/config.json", "line 2"}, [] {
    ModelFromHuggingFace("{\"model_type\": \"gpt2\",\n oops", "folder/config.json");
  });
  RequireError(ErrorCode::kData, {"must be an object"},
               [] { ModelFromHuggingFace("[]", "config.json"); });
  RequireError(ErrorCode::kData, {"model_type is missing"},
               [] { ModelFromHuggingFace("{}", "config.json"); });
}

TEST_CASE("a field given twice is an error: transformers would take one of the two",
          "[huggingface]") {
  std::string text = kPublishedGpt2;
  text.insert(1, "\"n_layer\": 6,");
  RequireError(ErrorCode::kData, {"n_layer"}, [&] { ModelFromHuggingFace(text, "config.json"); });
}

}  // namespace
}  // namespace millrace
