#include "models/huggingface/nemotron_h_fields.h"

#include <fmt/format.h>

namespace millrace {
namespace {

using Json = FieldReader::Json;

// The character of a block of transformers 5.
char BlockOf(const Json& name) {
  for (const auto& [text, kind] : {std::pair{"mamba", 'M'},
                                   {"linear_attention", 'M'},
                                   {"moe", 'E'},
                                   {"full_attention", '*'},
                                   {"attention", '*'},
                                   {"mlp", '-'}})
    if (name == text) return kind;
  return 0;
}

// Kinds of blocks by the field `list` of transformers 5, or `text` of published files; both, if
// they agree.
std::string ReadKinds(FieldReader& f, const char* list, const char* text) {
  const Json *types = f.Find(list), *written = f.Find(text);
  std::string pattern;
  if (types && !types->is_null() && !types->is_array())
    f.Problem("", "layers_block_type", *types, "must be a list");
  if (written && !written->is_null() && !written->is_string())
    f.Problem("", "hybrid_override_pattern", *written, "must be a string");
  if (types && types->is_array())
    for (const Json& type : *types) {
      const char kind = BlockOf(type);
      if (kind == 0) f.Problem("", list, type, "not a kind of block that we know");
      pattern += kind == 0 ? '-' : kind;
    }
  if (written && written->is_string()) {
    const std::string given = written->get<std::string>();
    if (given.find_first_not_of("ME*-") != given.npos)
      f.Problem("", text, *written, "may have M, E, * and - only");
    if (!pattern.empty() && pattern != given) f.Add(fmt::format("{} and {} disagree", text, list));
    pattern = given;
  }
  if (pattern.empty()) f.Add(fmt::format("{} is missing, and so is {}", list, text));
  return pattern;
}

std::string ReadPattern(FieldReader& f) {
  const std::string pattern = ReadKinds(f, "layers_block_type", "hybrid_override_pattern");
  const Json* layers = f.Find("num_hidden_layers");
  if (layers && *layers != pattern.size())
    f.Problem("", "num_hidden_layers", *layers,
              fmt::format("the pattern has {} blocks", pattern.size()));
  return pattern;
}

void ReadAttention(FieldReader& f, ModelConfig* m) {
  m->heads = f.Size("num_attention_heads");
  m->kv_heads = f.Size("num_key_value_heads", 8);
  // The older name, then the newer.
  const int64_t older = f.Size("attention_head_dim", 128);
  m->head_dim = f.Size("head_dim", older);
  if (f.Find("attention_head_dim") && older != *m->head_dim)
    f.Add(fmt::format("attention_head_dim, {}, and head_dim, {}, disagree", older, *m->head_dim));
  if (m->heads % *m->kv_heads != 0)
    f.Add(fmt::format("num_key_value_heads, {}, must divide num_attention_heads, {}", *m->kv_heads,
                      m->heads));
}

// [0, Infinity]: no limits.
void ReadTimeLimits(FieldReader& f, ModelConfig* m) {
  const Json* limits = f.Find("time_step_limit");
  if (!limits || limits->is_null()) return;
  const Json infinite = {{"__float__", "Infinity"}};
  if (!limits->is_array() || limits->size() != 2 || !(*limits)[0].is_number() ||
      !((*limits)[1].is_number() || (*limits)[1] == infinite))
    return f.Problem("", "time_step_limit", *limits, "must be a pair of numbers");
  m->mamba.dt_min = (*limits)[0];
  if ((*limits)[1].is_number()) m->mamba.dt_max = (*limits)[1].get<double>();
}

void ReadMamba(FieldReader& f, ModelConfig* m) {
  m->mamba.heads = f.Size("mamba_num_heads");
  m->mamba.head_dim = f.Size("mamba_head_dim");
  m->mamba.groups = f.Size("n_groups");
  m->mamba.state = f.Size("ssm_state_size");
  m->mamba.chunk = f.Size("chunk_size", 128);
  ReadTimeLimits(f, m);
}

void ReadExperts(FieldReader& f, ModelConfig* m) {
  m->moe.experts = f.Size("n_routed_experts");
  m->moe.top_k = f.Size("num_experts_per_tok");
  m->moe.ffn = f.Size("moe_intermediate_size");
  m->moe.groups = f.Size("n_group", 1);
  m->moe.top_groups = f.Size("topk_group", 1);
  m->moe.normalise = f.Flag("norm_topk_prob", true);
  m->moe.scaling = f.Number("routed_scaling_factor", 1);
  const Json* shared = f.Find("n_shared_experts");
  if (!shared || *shared != 0)
    m->moe.shared_ffn =
        f.Size("n_shared_experts", 1) * f.Size("moe_shared_expert_intermediate_size");
}

// One number under several names, of which transformers reads the first alone; published files have
// two of them.
void ReadNormEps(FieldReader& f, ModelConfig* m) {
  m->norm_eps = f.Number("layer_norm_epsilon", f.Number("rms_norm_eps", 1e-5));
  for (const char* other : {"rms_norm_eps", "norm_eps"})
    if (const double also = f.Number(other, m->norm_eps); also != m->norm_eps)
      f.Add(fmt::format("layer_norm_epsilon, {}, and {}, {}, disagree", m->norm_eps, other, also));
}

// Published folders come with code of their own, by these names. It is not run, and computes what
// is computed here; of any other nobody knows.
void CheckCode(FieldReader& f) {
  const Json* code = f.Find("auto_map");
  if (!code || code->is_null()) return;
  if (!code->is_object()) return f.Problem("", "auto_map", *code, "must be an object, or null");
  for (const auto& [name, value] : code->items()) {
    // transformers puts "owner/repository--" before it when it saves what it has fetched.
    std::string text = value.is_string() ? value.get<std::string>() : "";
    if (const size_t mark = text.find("--"); mark != text.npos) text = text.substr(mark + 2);
    if (text != "configuration_nemotron_h.NemotronHConfig" &&
        text != "modeling_nemotron_h.NemotronHForCausalLM")
      f.Problem("auto_map", name, value,
                "code that comes with a folder is not run; only configuration_nemotron_h."
                "NemotronHConfig and modeling_nemotron_h.NemotronHForCausalLM can be left alone");
  }
}

// What a file has of kinds of block that its pattern has none of, of losses of a training run, and
// of rotary positions, which the family's attention has none of.
void PassOver(FieldReader& f) {
  for (const char* field : {"num_attention_heads",
                            "num_key_value_heads",
                            "head_dim",
                            "attention_head_dim",
                            "intermediate_size",
                            "mamba_num_heads",
                            "mamba_head_dim",
                            "n_groups",
                            "ssm_state_size",
                            "chunk_size",
                            "time_step_limit",
                            "n_routed_experts",
                            "num_experts_per_tok",
                            "moe_intermediate_size",
                            "n_group",
                            "topk_group",
                            "norm_topk_prob",
                            "routed_scaling_factor",
                            "n_shared_experts",
                            "moe_shared_expert_intermediate_size",
                            "mtp_layers_block_type",
                            "mtp_hybrid_override_pattern",
                            "output_router_logits",
                            "router_aux_loss_coef",
                            "rope_theta",
                            "partial_rotary_factor"})
    f.Find(field);
}

}  // namespace

ModelConfig ReadNemotronH(FieldReader& f) {
  ModelConfig m;
  m.family = ModelFamily::kNemotronH;
  const std::string pattern = ReadPattern(f);
  m.pattern = pattern;
  m.d_model = f.Size("hidden_size");
  m.vocab = f.Size("vocab_size");
  m.seq_len = f.Size("max_position_embeddings");
  m.tied = f.Flag("tie_word_embeddings", false);
  m.activation = ActivationKind::kRelu2;
  ReadNormEps(f, &m);
  m.init_std = f.NumberFromZero("initializer_range", 0.02);
  m.mtp.depth = f.MtpDepth();
  if (m.mtp.depth > 0)
    m.mtp.pattern = ReadKinds(f, "mtp_layers_block_type", "mtp_hybrid_override_pattern");
  if (m.Has('*')) ReadAttention(f, &m);
  if (m.Has('-')) m.ffn = f.Size("intermediate_size");
  if (m.Has('M')) ReadMamba(f, &m);
  if (m.Has('E')) ReadExperts(f, &m);
  PassOver(f);
  CheckCode(f);
  f.CheckFixed(NemotronHFixedFields());
  f.CheckFixed(NoWindowFields());
  return m;
}

}  // namespace millrace
