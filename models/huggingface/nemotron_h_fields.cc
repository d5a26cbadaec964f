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

// What a file has of kinds of block that its pattern has none of, and of losses of a training run.
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
                            "router_aux_loss_coef"})
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
  m.norm_eps = f.Number("layer_norm_epsilon", f.Number("rms_norm_eps", 1e-5));
  if (f.Find("rms_norm_eps") && f.Number("rms_norm_eps", 1e-5) != m.norm_eps)
    f.Add("layer_norm_epsilon and rms_norm_eps disagree");
  m.init_std = f.NumberFromZero("initializer_range", 0.02);
  m.mtp.depth = f.MtpDepth();
  if (m.mtp.depth > 0)
    m.mtp.pattern = ReadKinds(f, "mtp_layers_block_type", "mtp_hybrid_override_pattern");
  if (m.Has('*')) ReadAttention(f, &m);
  if (m.Has('-')) m.ffn = f.Size("intermediate_size");
  if (m.Has('M')) ReadMamba(f, &m);
  if (m.Has('E')) ReadExperts(f, &m);
  PassOver(f);
  f.CheckFixed(NemotronHFixedFields());
  f.CheckFixed(NoWindowFields());
  return m;
}

}  // namespace millrace
