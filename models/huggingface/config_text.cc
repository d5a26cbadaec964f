#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/huggingface/config_json.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

using OrderedJson = nlohmann::ordered_json;

void Refuse(bool refused, const char* key, std::string value, ModelFamily family, const char* has) {
  MR_REQUIRE(ErrorCode::kConfig, !refused,
             "{} = {} cannot be written: config.json of {} can only say {}", key, value,
             Name(family), has);
}

// What no field of the family's config.json says.
void RequireSayable(const ModelConfig& m) {
  const FamilyTraits& traits = m.Traits();
  const auto text = [](bool flag) { return flag ? "true" : "false"; };
  Refuse(m.Rope() != traits.rope, "model.attention.rope", text(m.Rope()), m.family,
         text(traits.rope));
  Refuse(m.QkNorm() != traits.qk_norm, "model.attention.qk_norm", text(m.QkNorm()), m.family,
         text(traits.qk_norm));
  const bool slides =
      m.family == ModelFamily::kQwen3 || m.family == ModelFamily::kQwen3Moe || !m.attention.window;
  Refuse(!slides, "model.attention.window", std::to_string(m.attention.window.value_or(0)),
         m.family, "null");
  Refuse(m.ActivationKind() != traits.activation, "model.activation",
         std::string(Name(m.ActivationKind())), m.family, Name(traits.activation).data());
  Refuse(m.mtp.depth > 0 && m.family == ModelFamily::kQwen3Moe && m.MtpBranches() != "E",
         "model.mtp.pattern", m.MtpBranches(), m.family, "E");
  if (!m.Has('E')) return;
  Refuse(m.Router() != traits.router, "model.moe.router", std::string(Name(m.Router())), m.family,
         Name(traits.router).data());
  Refuse(m.RouterBias() != traits.router_bias, "model.moe.bias", text(m.RouterBias()), m.family,
         text(traits.router_bias));
  Refuse(m.moe.gate != GateKind::kRouter, "model.moe.gate", std::string(Name(m.moe.gate)), m.family,
         Name(GateKind::kRouter).data());
  if (m.family != ModelFamily::kQwen3Moe) return;
  Refuse(m.moe.groups != 1, "model.moe.groups", std::to_string(m.moe.groups), m.family, "1");
  Refuse(m.moe.scaling != 1, "model.moe.scaling", fmt::format("{}", m.moe.scaling), m.family, "1");
  Refuse(m.moe.shared_ffn.has_value(), "model.moe.shared_ffn",
         std::to_string(m.moe.shared_ffn.value_or(0)), m.family, "null");
}

OrderedJson Gpt2Fields(const ModelConfig& m) {
  return {{"architectures", OrderedJson::array({"GPT2LMHeadModel"})},
          {"model_type", "gpt2"},
          {"activation_function", "gelu_new"},
          {"n_layer", m.layers},
          {"n_embd", m.d_model},
          {"n_head", m.heads},
          {"n_inner", m.Ffn()},
          {"n_positions", m.seq_len},
          {"layer_norm_epsilon", m.norm_eps},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0},
          {"scale_attn_weights", true},
          {"scale_attn_by_inverse_layer_idx", false},
          {"reorder_and_upcast_attn", false}};
}

OrderedJson LlamaFields(const ModelConfig& m, const char* architecture) {
  OrderedJson j = {{"architectures", OrderedJson::array({architecture})},
                   {"model_type", Name(m.family)},
                   {"hidden_act", "silu"},
                   {"num_hidden_layers", m.Layers()},
                   {"hidden_size", m.d_model},
                   {"num_attention_heads", m.heads},
                   {"num_key_value_heads", m.KvHeads()},
                   {"head_dim", m.HeadDim()},
                   {"intermediate_size", m.Ffn()},
                   {"max_position_embeddings", m.seq_len},
                   {"rms_norm_eps", m.norm_eps},
                   {"rope_theta", m.RopeTheta()},
                   {"rope_scaling", nullptr},
                   {"attention_bias", false},
                   {"attention_dropout", 0.0}};
  if (m.rope_scaling)
    j["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", m.rope_scaling->factor},
        {"low_freq_factor", m.rope_scaling->low_freq_factor},
        {"high_freq_factor", m.rope_scaling->high_freq_factor},
        {"original_max_position_embeddings", m.rope_scaling->original_max_position_embeddings}};
  return j;
}

void AddWindow(const ModelConfig& m, OrderedJson* j) {
  const std::optional<int64_t>& window = m.attention.window;
  (*j)["use_sliding_window"] = window.has_value();
  (*j)["sliding_window"] = window ? OrderedJson(*window) : OrderedJson();
  (*j)["max_window_layers"] = window ? 0 : m.Layers();
}

void AddQwen3Experts(const ModelConfig& m, OrderedJson* j) {
  OrderedJson dense = OrderedJson::array();
  const std::string blocks = m.Blocks();
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i] == '-') dense.push_back(i);
  (*j)["decoder_sparse_step"] = 1;
  (*j)["mlp_only_layers"] = std::move(dense);
  (*j)["num_experts"] = m.moe.experts;
  (*j)["num_experts_per_tok"] = m.moe.top_k;
  (*j)["moe_intermediate_size"] = m.moe.ffn;
  (*j)["norm_topk_prob"] = m.moe.normalise;
  (*j)["output_router_logits"] = false;
}

OrderedJson BlockTypes(const std::string& blocks) {
  OrderedJson types = OrderedJson::array();
  for (const char kind : blocks)
    types.push_back(kind == 'M'   ? "linear_attention"
                    : kind == 'E' ? "moe"
                    : kind == '*' ? "full_attention"
                                  : "mlp");
  return types;
}

OrderedJson NemotronHFields(const ModelConfig& m) {
  OrderedJson j = {{"architectures", OrderedJson::array({"NemotronHForCausalLM"})},
                   {"model_type", "nemotron_h"},
                   {"hybrid_override_pattern", m.Blocks()},
                   {"layers_block_type", BlockTypes(m.Blocks())},
                   {"num_hidden_layers", m.Layers()},
                   {"hidden_size", m.d_model},
                   {"max_position_embeddings", m.seq_len},
                   {"layer_norm_epsilon", m.norm_eps},
                   {"mlp_hidden_act", "relu2"},
                   {"residual_in_fp32", false},
                   {"attention_bias", false},
                   {"attention_dropout", 0.0},
                   {"hidden_dropout", 0.0},
                   {"mlp_bias", false},
                   {"use_bias", false}};
  if (m.Has('*')) {
    j["num_attention_heads"] = m.heads;
    j["num_key_value_heads"] = m.KvHeads();
    j["head_dim"] = m.HeadDim();
  }
  if (m.Has('-')) j["intermediate_size"] = m.Ffn();
  return j;
}

void AddMamba(const ModelConfig& m, OrderedJson* j) {
  const MambaConfig& mamba = m.mamba;
  (*j)["mamba_num_heads"] = mamba.heads;
  (*j)["mamba_head_dim"] = mamba.head_dim;
  (*j)["n_groups"] = mamba.groups;
  (*j)["ssm_state_size"] = mamba.state;
  (*j)["chunk_size"] = mamba.chunk;
  (*j)["conv_kernel"] = 4;
  (*j)["use_conv_bias"] = true;
  (*j)["mamba_hidden_act"] = "silu";
  (*j)["mamba_proj_bias"] = false;
  // The limits again, for transformers 5.23 clamps steps to (time_step_min, infinity) and does not
  // look at time_step_limit; its default of time_step_min, the least of initial steps, is 0.001.
  (*j)["time_step_min"] = mamba.dt_min;
  const OrderedJson most =
      mamba.dt_max ? OrderedJson(*mamba.dt_max) : OrderedJson{{"__float__", "Infinity"}};
  (*j)["time_step_limit"] = OrderedJson::array({mamba.dt_min, most});
}

void AddNemotronHExperts(const ModelConfig& m, OrderedJson* j) {
  const MoeConfig& moe = m.moe;
  (*j)["n_routed_experts"] = moe.experts;
  (*j)["num_experts_per_tok"] = moe.top_k;
  (*j)["moe_intermediate_size"] = moe.ffn;
  (*j)["n_group"] = moe.groups;
  (*j)["topk_group"] = moe.top_groups;
  (*j)["norm_topk_prob"] = moe.normalise;
  (*j)["routed_scaling_factor"] = moe.scaling;
  (*j)["n_shared_experts"] = moe.shared_ffn ? 1 : 0;
  if (moe.shared_ffn) (*j)["moe_shared_expert_intermediate_size"] = *moe.shared_ffn;
}

OrderedJson FieldsOf(const ModelConfig& m) {
  OrderedJson j;
  switch (m.family) {
    case ModelFamily::kGpt2:
      return Gpt2Fields(m);
    case ModelFamily::kLlama:
      j = LlamaFields(m, "LlamaForCausalLM");
      j["mlp_bias"] = false;
      j["pretraining_tp"] = 1;
      return j;
    case ModelFamily::kQwen3:
      j = LlamaFields(m, "Qwen3ForCausalLM");
      AddWindow(m, &j);
      return j;
    case ModelFamily::kQwen3Moe:
      j = LlamaFields(m, "Qwen3MoeForCausalLM");
      AddWindow(m, &j);
      AddQwen3Experts(m, &j);
      return j;
    case ModelFamily::kNemotronH:
      j = NemotronHFields(m);
      if (m.Has('M')) AddMamba(m, &j);
      if (m.Has('E')) AddNemotronHExperts(m, &j);
      if (m.mtp.depth > 0) j["mtp_layers_block_type"] = BlockTypes(m.MtpBranches());
      return j;
  }
  return j;
}

}  // namespace

std::string HuggingFaceConfigText(const ModelConfig& m) {
  RequireSayable(m);
  OrderedJson j = FieldsOf(m);
  if (m.mtp.depth > 0) j["num_nextn_predict_layers"] = m.mtp.depth;
  j["vocab_size"] = m.Vocab();
  j["tie_word_embeddings"] = m.Tied();
  j["initializer_range"] = m.init_std;
  j["bos_token_id"] = nullptr;
  j["eos_token_id"] = nullptr;
  j["torch_dtype"] = "float32";
  return DumpJson(j, {.indent = 2}) + "\n";
}

std::string HuggingFaceGenerationText() {
  return DumpJson(nlohmann::ordered_json{{"_from_model_config", true},
                                         {"bos_token_id", nullptr},
                                         {"eos_token_id", nullptr}},
                  {.indent = 2}) +
         "\n";
}

}  // namespace millrace
